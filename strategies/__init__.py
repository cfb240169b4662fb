"""Built-in strategies, registered through the same entry points as anyone's."""
