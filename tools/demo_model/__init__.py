"""The parts of the demo model's training: network, text encoding, checkpoint layout, evaluation."""
