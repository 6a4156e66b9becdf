"""What a run was and what came out: records, where they were made, their files, and what older ones call otherwise."""

from hetfl_core.records.provenance import code_revision, environment
from hetfl_core.records.record import (
    RunRecord,
    compare_records,
    measured,
    records_of,
    relative_path_of,
    to_percent,
    value,
)
from hetfl_core.records.storage import find, load, pack, read, tidy, to_json, write, write_to

__all__ = ["RunRecord", "compare_records", "load", "read", "records_of", "tidy", "value", "write"]
