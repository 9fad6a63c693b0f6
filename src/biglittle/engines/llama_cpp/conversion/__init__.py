"""How a Hugging Face model becomes a GGUF file."""
