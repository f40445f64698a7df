"""What a user can put right about options and inputs, apart from what reads models: options alone are checked with it, too."""

__all__ = ["InputError"]


class InputError(ValueError):
    """An option, or an input named or shaped by the user, contradicts the model or another option."""
