//! Tables over every field.
