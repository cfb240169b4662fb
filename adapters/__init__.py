"""Built-in adapters, registered through the same entry points as anyone's."""
