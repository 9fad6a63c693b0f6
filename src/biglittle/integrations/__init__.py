"""Ways in from other libraries. One module a library."""
