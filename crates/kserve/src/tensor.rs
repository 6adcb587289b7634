//! Tensor codec.
