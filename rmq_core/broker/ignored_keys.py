"""Keys of the original's ``broker.conf`` without effect here, and keys of missing features.

Keys of threads, buffers and parts that this broker does not have are ignored. A key of a missing feature, such as TLS
by ``useTLS`` or a store in RocksDB, may only have the value that turns the feature off.

Source: the fields of ``BrokerConfig``, ``BrokerIdentity``, ``MessageStoreConfig``, ``NettyServerConfig``,
``NettyClientConfig`` and ``AuthConfig``.
"""

from typing import Final

_FROM_5_4: Final = frozenset(
    """
    batchDeleteSubscriptionGroupMaxRate batchDeleteTopicMaxRate checkCommitLogOffsetOnRecover
    combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
    combineCQPreferCQType commitLogRecoverMaxNum correctMinOffsetMadviseEnable enableAcceleratedRecovery
    enableConnectionMetrics enableLagAndDlqMetrics enableLitePopLog enableLogConsumeQueueRepeatedlyBuildWhenRecover
    enableMessageStoreMetrics enablePopMetrics enableRemotingMetrics enableRequestMetrics enableRunningFlagsInFlush
    enableSplitMetadata enableStatsMetrics enableTransactionMetrics iteratorWhenUseRocksdbConsumeQueue
    liteEventCapacityCacheTtlMs liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
    maxCheckMessageReuseBufferSize maxMessageFilterNumForNotification maxRocksDBIndexQueryDays
    metricsExportBatchMaxConcurrent metricsExportBatchMaxDataPoints metricsExportBatchSplitEnabled
    metricsExportOtelMemoryMode persistConsumerOffsetIncrementally popFromRetryProbabilityForPriority
    popOrderLockTimerTickMs popOrderLockTimerTicksPerWheel popPollingMapExpireTimeSeconds popReviveConcurrency
    popReviveSkipIfGroupAbsent popRocksdbBlockCacheSize popRocksdbWriteBufferSize rocksdbMaxSizeAmplificationPercent
    sharedByteBufferNum splitMetadataSize timerRecallToTimeWheelEnable timerRecallToTimelineEnable
    timerReputServiceCorePoolSize timerReputServiceMaxPoolSize timerReputServiceQueueCapacity
    timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours
    timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps timerWheelSnapshotFlush timerWheelSnapshotIntervalMs
    transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
    useMessageFilterForNotification useSeparateStorePathForRocksdbCQ writeWithoutMmap
    """.split()  # noqa: SIM905
)
IGNORED: Final = _FROM_5_4 | frozenset(
    """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync
    asyncSendEnable autoDeleteUnusedStats batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerConfigPath brokerElectionPriority brokerHeartbeatInterval brokerNotActiveTimeoutMillis cgColdReadThreshold
    channelNotActiveInterval checkSyncStateSetPeriod cleanOfflineBrokerInterval cleanResourceInterval
    cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue
    clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName
    coldCtrStrategyEnable commercialBaseCount commercialSizePerMsg commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
    compactionThreadNum compatibleWithOldNameSrv configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep
    controllerAddr controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable debugLockEnable
    defaultQueryMaxNum delayOffsetUpdateVersionStep disableCallbackExecutor disableNettyWorkerGroup diskFallRecorded
    dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput enableBatchPush
    enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCompaction
    enableCreateSysGroup enableDetailStat enableFastChannelEventProcess enableLmqStats
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge
    enablePopLog enableReconnectForGoAway enableRegisterProducer enableRocksDBLog enableScheduleAsyncDeliver
    enableScheduleMessageStats enableShutdownGracefully enableSplitRegistration endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums fastFailIfNoBufferInStorePool fetchNamesrvAddrInterval
    flushConsumerOffsetHistoryInterval flushLeastPagesWhenWarmMapedFile forceRegister forwardTimeout
    globalColdReadThreshold haMaxTimeSlaveNotCatchup heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
    highSpeedMode initPopOffsetByCheckMsgInMem litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold mappedFileSwapEnable maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxConsumeQueueScan maxHaTransferByteInSecond maxOffsetMapSize maxPopPollingSize
    maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxSlaveResendLength maxStatsIdleTimeInMinutes
    maxTopicLength memTableFlushIntervalMs messageIndexSafe metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit metricsPromExporterHost
    metricsPromExporterPort minInSyncReplicas popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
    popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize
    popPollingSize popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead preferredLeaderId printChannelGroups
    printChannelGroupsMinNum processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout
    putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
    realTimeNotifyConsumerChange realTimePersistRocksDBConfig recheckReputOffsetFromCq recoverConcurrently
    recoverThreadPoolNums replicasPerDiskPartition replyThreadPoolQueueCapacity reviveAckWaitMs reviveInterval
    reviveMaxSlow reviveScanTime rocketmqHome rocksdbCompressionType rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverLoadBalancerEnable serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds skipPreOnline
    spinLockCollisionRetreatOptimalDegree splitRegistrationSize statRocksDBCQIntervalSec
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum storePathBrokerIdentity
    storePathDLedgerCommitLog storePathEpochFile subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum timerWarmEnable topicQueueLockNum
    totalReplicas transactionMetricFlushInterval transferMsgByHeap transientStorePoolSize
    travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock useEpollNativeSelector usePIDColdCtrStrategy
    useReentrantLockWhenPutMessage userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable writeBufferLowWaterMark
    """.split()  # noqa: SIM905 # a list would take a line for each
)

_AUTHENTICATION: Final = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION: Final = "org.apache.rocketmq.auth.authorization"
_ALWAYS_FALSE: Final = """
    aclEnable allAckInSyncStateSet asyncLearner coldDataFlowControlEnable coldDataScanEnable
    combineCQUseRocksdbForLmq disableConsumeIfConsumerReadSlowly duplicationEnable enableAutoInSyncReplicas
    enableCleanExpiredOffset enableControllerMode enableDLegerCommitLog enableLmqQuota enableNetWorkFlowControl
    enablePopMessageThreshold enableRemoteEscape enableRetryTopicV2 enableSkipLongAwaitingAck
    enableSlaveActingMaster fetchControllerAddrByDnsLookup fetchNamesrvAddrByAddressServer
    fetchNameSrvAddrByDnsLookup forceVerifyPropCRC haFlowControlEnable indexRocksDBEnable lockInStrictMode
    migrateAuthFromV1Enabled popConsumerKVServiceEnable popResponseReturnActualRetryTopic readUnCommitted
    rejectPullConsumerEnable rocksdbCQDoubleWriteEnable rocksdbCQSelectiveDoubleWriteEnable
    skipWhenCKRePutReachMaxTimes syncFromLastFile syncMasterFlushOffsetWhenStartup timerInterceptDelayLevel
    timerRocksDBEnable timerSkipUnknownError tlsEnable transientStorePoolEnable transRocksDBEnable
    useSeparateRetryQueue useSingleRocksDBForAllConfigs useStaticSubscription useTLS
    """.split()  # noqa: SIM905
FIXED_VALUES: Final = {
    **dict.fromkeys(_ALWAYS_FALSE, "false"),
    "authConfigPath": "",
    "authenticationMetadataProvider": f"{_AUTHENTICATION}.provider.LocalAuthenticationMetadataProvider|",
    "authenticationProvider": f"{_AUTHENTICATION}.provider.DefaultAuthenticationProvider|",
    "authenticationStrategy": f"{_AUTHENTICATION}.strategy.StatelessAuthenticationStrategy|",
    "authorizationMetadataProvider": f"{_AUTHORIZATION}.provider.LocalAuthorizationMetadataProvider|",
    "authorizationProvider": f"{_AUTHORIZATION}.provider.DefaultAuthorizationProvider|",
    "authorizationStrategy": f"{_AUTHORIZATION}.strategy.StatelessAuthorizationStrategy|",
    "autoMessageVersionOnTopicLen": "true",
    "configManagerVersion": "v1",
    "defaultMessageRequestMode": "PULL",
    "defaultPopShareQueueNum": "-1",
    "disappearTimeAfterStart": "-1",
    "indexFileReadEnable": "true",
    "indexFileWriteEnable": "true",
    "litePullMessageEnable": "true",
    "messageStorePlugIn": "",
    "metricsExporterType": "DISABLE|0",
    "priorityOrderAsc": "true",
    "readOnlyCommitLogStorePaths": "",
    "retrieveMessageFromPopRetryTopicV1": "true",
    "socksProxyConfig": "{}|",
    "startAcceptSendRequestTimeStamp": "0",
    "storeReplyMessageEnable": "true",
    "storeType": "default",
    "transWriteOriginTransHalfEnable": "true",
    "useServerSideResetOffset": "true",
    "validateSystemTopicWhenUpdateTopic": "true",
}
"""The only values of keys of missing features, separated by ``|``; an error names the first."""
