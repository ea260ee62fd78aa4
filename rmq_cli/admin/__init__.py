"""``rmq admin``: the commands of mqadmin."""
