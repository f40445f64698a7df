"""The errors that a user can put right: a command says each in one line, and ends with exit code 2."""

from __future__ import annotations

from mugraph.onnx import ModelError
from rewriter.cost import ProfileError
from rewriter.reference import InputError
from rewriter.runtime import RuntimeLibraryError
from rewriter.runtime_env import ProviderError
from rules_db.files import StoreError

__all__ = ["USER_ERRORS"]

USER_ERRORS = (ModelError, InputError, ProviderError, ProfileError, StoreError, RuntimeLibraryError)
"""Types of exceptions whose message is for the user."""
