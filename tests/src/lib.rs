//! What the whole-program tests are made of.
#![forbid(unsafe_code)]

pub mod real;
