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
    combineCQPreferCQType combineCQUseRocksdbForLmq commitLogRecoverMaxNum correctMinOffsetMadviseEnable
    enableAcceleratedRecovery enableConnectionMetrics enableLagAndDlqMetrics enableLitePopLog enableLmqQuota
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
    rocksdbCQSelectiveDoubleWriteEnable rocksdbMaxSizeAmplificationPercent sharedByteBufferNum splitMetadataSize
    timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
    timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
    timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerWheelSnapshotFlush timerWheelSnapshotIntervalMs transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity useMessageFilterForNotification
    useSeparateRetryQueue useSeparateStorePathForRocksdbCQ useSingleRocksDBForAllConfigs writeWithoutMmap
    """.split()  # noqa: SIM905
)
IGNORED: Final = _FROM_5_4 | frozenset(
    """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync asyncSendEnable authConfigPath
    authenticationMetadataProvider authenticationProvider authenticationStrategy
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    autoDeleteUnusedStats autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
    broadcastOffsetExpireSecond brokerConfigPath brokerElectionPriority brokerFastFailureEnable
    brokerHeartbeatInterval brokerNotActiveTimeoutMillis cgColdReadThreshold channelNotActiveInterval
    checkSyncStateSetPeriod cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable commercialBaseCount commercialSizePerMsg
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
    compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compatibleWithOldNameSrv configBlackList configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep
    controllerAddr controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable debugLockEnable
    defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum delayOffsetUpdateVersionStep
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly
    disableCallbackExecutor disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum
    dispatchCqThreads dispatchFromSenderThread enableAsyncReput enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction enableCreateSysGroup
    enableDetailStat enableFastChannelEventProcess enableLmqStats enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge
    enablePopLog enablePopMessageThreshold enableReconnectForGoAway enableRegisterProducer enableRetryTopicV2
    enableRocksDBLog enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully
    enableSkipLongAwaitingAck enableSplitRegistration endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
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
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort minInSyncReplicas osPageCacheBusyTimeOutMills
    popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize popPollingSize
    popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead preferredLeaderId
    printChannelGroups printChannelGroupsMinNum processReplyMessageThreadPoolNums pullBatchMaxMessageCount
    pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
    putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity readUnCommitted realTimeNotifyConsumerChange
    realTimePersistRocksDBConfig recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums
    redeleteHangedFileInterval replicasPerDiskPartition replyThreadPoolQueueCapacity
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveScanTime rocketmqHome
    rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold
    sampleSteps scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverLoadBalancerEnable serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds skipPreOnline
    skipWhenCKRePutReachMaxTimes socksProxyConfig spinLockCollisionRetreatOptimalDegree splitRegistrationSize
    startAcceptSendRequestTimeStamp statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile storeReplyMessageEnable
    subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
    syncFromLastFile syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerInterceptDelayLevel timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum
    timerSkipUnknownError timerWarmEnable topicQueueLockNum totalReplicas transactionMetricFlushInterval
    transferMsgByHeap transientStorePoolSize travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock
    useEpollNativeSelector usePIDColdCtrStrategy useReentrantLockWhenPutMessage useStaticSubscription
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond validateSystemTopicWhenUpdateTopic
    waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeBufferLowWaterMark
    """.split()  # noqa: SIM905 # a list would take a line for each
)

DONE_ANYWAY: Final = {
    "aclEnable": "false",
    "asyncLearner": "false",
    "configManagerVersion": "v1",
    "disableConsumeIfConsumerReadSlowly": "false",
    "duplicationEnable": "false",
    "enableAutoInSyncReplicas": "false",
    "enableControllerMode": "false",
    "enableDLegerCommitLog": "false",
    "enableRemoteEscape": "false",
    "enableSlaveActingMaster": "false",
    "fetchControllerAddrByDnsLookup": "false",
    "fetchNamesrvAddrByAddressServer": "false",
    "fetchNameSrvAddrByDnsLookup": "false",
    "haFlowControlEnable": "false",
    "indexFileReadEnable": "true",
    "indexFileWriteEnable": "true",
    "indexRocksDBEnable": "false",
    "litePullMessageEnable": "true",
    "lockInStrictMode": "false",
    "messageStorePlugIn": "",
    "migrateAuthFromV1Enabled": "false",
    "priorityOrderAsc": "true",
    "readOnlyCommitLogStorePaths": "",
    "rejectPullConsumerEnable": "false",
    "rocksdbCQDoubleWriteEnable": "false",
    "storeType": "default",
    "timerRocksDBEnable": "false",
    "tlsEnable": "false",
    "transRocksDBEnable": "false",
    "transWriteOriginTransHalfEnable": "true",
    "transientStorePoolEnable": "false",
    "useTLS": "false",
}
