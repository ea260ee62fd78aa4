"""RocketMQ's remoting protocol: codecs of frames, headers and bodies, with asyncio's server and client over them."""
