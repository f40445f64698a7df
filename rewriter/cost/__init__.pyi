from rewriter.cost.devices import DEVICES, Device, default_device, get_device
from rewriter.cost.fused import RuntimeDirections
from rewriter.cost.model import CostModel, Signature
from rewriter.cost.store import ProfileError, ProfileStore
from rewriter.cost.table import CostTable, merge_tables, read_table, write_table

__all__ = [
    "DEVICES",
    "CostModel",
    "CostTable",
    "Device",
    "ProfileError",
    "ProfileStore",
    "RuntimeDirections",
    "Signature",
    "default_device",
    "get_device",
    "merge_tables",
    "read_table",
    "write_table",
]
