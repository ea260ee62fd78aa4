"""Reading records of a store by what they are: which rows are wanted, by which way, from which bytes.

``query`` says what is wanted, ``plan`` chooses the access path and cuts the work into tasks, ``read``
runs one task. Nothing here knows of Spark; its data sources, ``Store`` and the command line come through
here.
"""
