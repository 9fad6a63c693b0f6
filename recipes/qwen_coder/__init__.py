"""The little Qwen aligned to the big one, and profiles for three tasks; see README.md."""
