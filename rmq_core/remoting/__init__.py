"""RocketMQ's remoting protocol: first without input and output, then asyncio's server and client over it."""
