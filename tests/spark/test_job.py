"""The shell of jobs: what of an error is told in its one line."""

from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError
from rmq_formats.spark.session import check_class, delta_package
from rmq_lakehouse.delta.location import first_line
from rmq_offline.spark.job import spark_cause


def test_a_library_that_does_not_fit_this_spark_is_told(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    failure = jvm.scala.util.Failure(jvm.java.lang.NoSuchMethodError("'void org.apache.spark.Some.<init>()'"))
    with pytest.raises(Py4JJavaError) as caught:
        failure.get()
    told = spark_cause(caught.value)
    assert told.startswith(f"a library in the JVM does not fit Spark {pyspark.__version__} (Delta 4.4.0 is built for")
    assert told.endswith("java.lang.NoSuchMethodError: 'void org.apache.spark.Some.<init>()'")
    assert first_line(caught.value) == told  # what a table's place says of it


def test_what_a_session_was_not_given_is_told_with_what_to_give(spark: SparkSession) -> None:
    check_class(spark, "org.apache.spark.sql.delta.DeltaLog", delta_package())
    with pytest.raises(OptionError) as told:
        check_class(spark, "org.apache.spark.sql.nosuch.DeltaLog", "io.delta:delta-spark_4.2_2.13:4.4.0")
    assert str(told.value) == (
        "this session has no delta-spark_4.2_2.13: give spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0"
    )
