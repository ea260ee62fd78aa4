"""Options of tables in Spark's catalog: ``CREATE TABLE t USING rmq_commitlog OPTIONS (path '/data/store')``.

Spark hands the options over when the table is created, and never again: ``PythonDataSourceV2#getTable`` drops the
table's properties, and ``PythonTable#newScanBuilder`` has those of ``SELECT … WITH (…)`` alone. But the catalog keeps
the schema that a source gave, and a reader is given it: there a table's options are, as metadata of its first column.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from rmq_formats.errors import OptionError

_KEPT: Final = "rmq.options"  # of a column's metadata
_GIVEN: Final = "option."  # before each option of OPTIONS (…), among the properties of a table
_PROVIDER: Final = "provider"  # a property of each table, and no option of ours
_SECRETS: Final = frozenset({"accesskey", "secretkey", "securitytoken", "tls.client.keypassword"})


def get_source_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source; for a table that is created, the options among its properties."""
    if _PROVIDER not in options:
        return dict(options)
    source_options = {name.removeprefix(_GIVEN): value for name, value in options.items() if name.startswith(_GIVEN)}
    if "path" in options:  # as a location: OPTIONS (path …) and LOCATION
        source_options["path"] = re.sub(r"^file:(//)?(?=/)", "", options["path"])
    return source_options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that is created, with its options; of any other read as it is.

    Raises:
        OptionError: an option is a secret, which whoever selects from the table could read.
    """
    if _PROVIDER not in options:
        return schema
    kept_options = get_source_options(options)
    secrets = sorted(_SECRETS & {name.lower() for name in kept_options})
    if secrets:
        raise OptionError(f"a table cannot keep the option {secrets[0]}; give credentialsFile, or variables")
    first, *other_fields = schema.fields
    metadata = {**(first.metadata or {}), _KEPT: json.dumps(kept_options)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *other_fields])


def table_options(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read: the table's options in the schema, overridden by the read's ``options``."""
    kept: dict[str, str] = {}
    for column in schema:
        kept |= json.loads((column.metadata or {}).get(_KEPT, "{}"))
    overridden = {name.lower() for name in options}
    return {name: value for name, value in kept.items() if name.lower() not in overridden} | dict(options)
