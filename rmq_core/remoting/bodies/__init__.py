"""The bodies of remoting commands, as typed structs with the JSON member names of RocketMQ.

``codec`` reads standard JSON and fastjson's dialect, and writes standard JSON, compact, members in Java's order.
"""
