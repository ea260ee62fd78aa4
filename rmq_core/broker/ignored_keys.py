"""Keys of the original's ``broker.conf`` that have no effect here, and those that would have to.

The first set threads, buffers and parts that this broker does not have, and are accepted. The others promise
something to those who set them, such as TLS or a store in RocksDB: only the value that describes what is done anyway
is accepted, and any other is refused. Source: the fields of ``BrokerConfig``,
``BrokerIdentity``, ``MessageStoreConfig``, ``NettyServerConfig``, ``NettyClientConfig`` and ``AuthConfig``.
"""

from typing import Final

_FROM_5_4: Final = frozenset(
    """
    batchDeleteSubscriptionGroupMaxRate batchDeleteTopicMaxRate checkCommitLogOffsetOnRecover
    combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
    combineCQPreferCQType commitLogRecoverMaxNum correctMinOffsetMadviseEnable
    enableAcceleratedRecovery enableConnectionMetrics enableLagAndDlqMetrics enableLitePopLog
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enablePopMetrics
    enableRemotingMetrics enableRequestMetrics enableRunningFlagsInFlush enableSplitMetadata enableStatsMetrics
    enableTransactionMetrics iteratorWhenUseRocksdbConsumeQueue liteEventCapacityCacheTtlMs
    liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
    liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
    maxCheckMessageReuseBufferSize
    maxMessageFilterNumForNotification maxRocksDBIndexQueryDays
    metricsExportBatchMaxConcurrent metricsExportBatchMaxDataPoints metricsExportBatchSplitEnabled
    metricsExportOtelMemoryMode persistConsumerOffsetIncrementally popFromRetryProbabilityForPriority
    popOrderLockTimerTickMs popOrderLockTimerTicksPerWheel popPollingMapExpireTimeSeconds popReviveConcurrency
    popReviveSkipIfGroupAbsent popRocksdbBlockCacheSize popRocksdbWriteBufferSize
    rocksdbMaxSizeAmplificationPercent sharedByteBufferNum splitMetadataSize
    timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
    timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
    timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerWheelSnapshotFlush timerWheelSnapshotIntervalMs transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity useMessageFilterForNotification
    useSeparateStorePathForRocksdbCQ writeWithoutMmap
    """.split()  # noqa: SIM905
)
IGNORED: Final = _FROM_5_4 | frozenset(
    """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync asyncSendEnable
    autoDeleteUnusedStats batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
    broadcastOffsetExpireSecond brokerConfigPath brokerElectionPriority
    brokerHeartbeatInterval brokerNotActiveTimeoutMillis cgColdReadThreshold channelNotActiveInterval
    checkSyncStateSetPeriod cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName coldCtrStrategyEnable
    commercialBaseCount commercialSizePerMsg
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
    compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compatibleWithOldNameSrv configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep
    controllerAddr controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable debugLockEnable
    defaultQueryMaxNum delayOffsetUpdateVersionStep
    disableCallbackExecutor disableNettyWorkerGroup diskFallRecorded dispatchCqCacheNum
    dispatchCqThreads dispatchFromSenderThread enableAsyncReput enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCompaction enableCreateSysGroup
    enableDetailStat enableFastChannelEventProcess enableLmqStats
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge
    enablePopLog enableReconnectForGoAway enableRegisterProducer
    enableRocksDBLog enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully
    enableSplitRegistration endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval
    flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile forceRegister
    forwardTimeout globalColdReadThreshold haMaxTimeSlaveNotCatchup heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode initPopOffsetByCheckMsgInMem
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold mappedFileSwapEnable
    maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan
    maxHaTransferByteInSecond maxOffsetMapSize maxPopPollingSize
    maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes
    maxTopicLength memTableFlushIntervalMs messageIndexSafe metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort minInSyncReplicas
    popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize popPollingSize
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead preferredLeaderId
    printChannelGroups printChannelGroupsMinNum processReplyMessageThreadPoolNums pullBatchMaxMessageCount
    pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
    putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity realTimeNotifyConsumerChange
    realTimePersistRocksDBConfig recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums
    replicasPerDiskPartition replyThreadPoolQueueCapacity
    reviveAckWaitMs reviveInterval reviveMaxSlow reviveScanTime rocketmqHome
    rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold
    sampleSteps scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverLoadBalancerEnable serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds skipPreOnline
    spinLockCollisionRetreatOptimalDegree splitRegistrationSize
    statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile
    subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
    timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum
    timerWarmEnable topicQueueLockNum totalReplicas transactionMetricFlushInterval
    transferMsgByHeap transientStorePoolSize travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock
    useEpollNativeSelector usePIDColdCtrStrategy useReentrantLockWhenPutMessage
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeBufferLowWaterMark
    """.split()  # noqa: SIM905 # a list would take a line for each
)

_AUTHENTICATION: Final = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION: Final = "org.apache.rocketmq.auth.authorization"
FIXED_VALUES: Final = {
    "aclEnable": "false",
    "allAckInSyncStateSet": "false",
    "asyncLearner": "false",
    "authConfigPath": "",
    "authenticationMetadataProvider": f"{_AUTHENTICATION}.provider.LocalAuthenticationMetadataProvider|",
    "authenticationProvider": f"{_AUTHENTICATION}.provider.DefaultAuthenticationProvider|",
    "authenticationStrategy": f"{_AUTHENTICATION}.strategy.StatelessAuthenticationStrategy|",
    "authorizationMetadataProvider": f"{_AUTHORIZATION}.provider.LocalAuthorizationMetadataProvider|",
    "authorizationProvider": f"{_AUTHORIZATION}.provider.DefaultAuthorizationProvider|",
    "authorizationStrategy": f"{_AUTHORIZATION}.strategy.StatelessAuthorizationStrategy|",
    "autoMessageVersionOnTopicLen": "true",
    "coldDataFlowControlEnable": "false",
    "coldDataScanEnable": "false",
    "combineCQUseRocksdbForLmq": "false",
    "configManagerVersion": "v1",
    "defaultMessageRequestMode": "PULL",
    "defaultPopShareQueueNum": "-1",
    "disableConsumeIfConsumerReadSlowly": "false",
    "disappearTimeAfterStart": "-1",
    "duplicationEnable": "false",
    "enableAutoInSyncReplicas": "false",
    "enableCleanExpiredOffset": "false",
    "enableControllerMode": "false",
    "enableDLegerCommitLog": "false",
    "enableLmqQuota": "false",
    "enableNetWorkFlowControl": "false",
    "enablePopMessageThreshold": "false",
    "enableRemoteEscape": "false",
    "enableRetryTopicV2": "false",
    "enableSkipLongAwaitingAck": "false",
    "enableSlaveActingMaster": "false",
    "fetchControllerAddrByDnsLookup": "false",
    "fetchNamesrvAddrByAddressServer": "false",
    "fetchNameSrvAddrByDnsLookup": "false",
    "forceVerifyPropCRC": "false",
    "haFlowControlEnable": "false",
    "indexFileReadEnable": "true",
    "indexFileWriteEnable": "true",
    "indexRocksDBEnable": "false",
    "litePullMessageEnable": "true",
    "lockInStrictMode": "false",
    "messageStorePlugIn": "",
    "metricsExporterType": "DISABLE|0",
    "migrateAuthFromV1Enabled": "false",
    "popConsumerKVServiceEnable": "false",
    "popResponseReturnActualRetryTopic": "false",
    "priorityOrderAsc": "true",
    "readOnlyCommitLogStorePaths": "",
    "readUnCommitted": "false",
    "rejectPullConsumerEnable": "false",
    "retrieveMessageFromPopRetryTopicV1": "true",
    "rocksdbCQDoubleWriteEnable": "false",
    "rocksdbCQSelectiveDoubleWriteEnable": "false",
    "skipWhenCKRePutReachMaxTimes": "false",
    "socksProxyConfig": "{}|",
    "startAcceptSendRequestTimeStamp": "0",
    "storeReplyMessageEnable": "true",
    "storeType": "default",
    "syncFromLastFile": "false",
    "syncMasterFlushOffsetWhenStartup": "false",
    "timerInterceptDelayLevel": "false",
    "timerRocksDBEnable": "false",
    "timerSkipUnknownError": "false",
    "tlsEnable": "false",
    "transientStorePoolEnable": "false",
    "transRocksDBEnable": "false",
    "transWriteOriginTransHalfEnable": "true",
    "useSeparateRetryQueue": "false",
    "useServerSideResetOffset": "true",
    "useSingleRocksDBForAllConfigs": "false",
    "useStaticSubscription": "false",
    "useTLS": "false",
    "validateSystemTopicWhenUpdateTopic": "true",
}
"""Keys that promise what is not there; the values that describe what is done anyway, the first of which is told."""
