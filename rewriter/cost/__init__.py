"""The costs of candidates: operator times measured in the runtime that will run the model.

Names are taken from their modules when they are first asked for: who needs one imports no other module.
"""

from mugraph.starting import late_names

_MODULES = {
    "devices": ("DEVICES", "Device", "default_device", "get_device"),
    "fused": ("RuntimeDirections",),
    "model": ("CostModel", "Signature"),
    "store": ("ProfileError", "ProfileStore"),
    "table": ("CostTable", "merge_tables", "read_table", "write_table"),
}
__getattr__ = late_names(__name__, _MODULES)

__all__ = sorted(name for names in _MODULES.values() for name in names)
