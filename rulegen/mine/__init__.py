"""Mining: rules found in models."""
