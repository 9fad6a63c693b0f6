"""Big Little Decoder on German–English captions, from training to tables; see README.md."""
