//! A stand-in for CRIU: the client side of the image streamer protocol.
//!
//! | module | what it is |
//! |---|---|
//! | [`capture`] | `criu dump --stream`: asks to store images and writes them into pipes |
//! | [`serve`] | `criu restore --stream`: asks for images and reads them from pipes |
//! | [`pages`] | memory that goes into pipes by reference |
//! | [`wire`] | the bytes both send |
//!
//! It keeps to the letter of CRIU's side of the protocol and does everything that a CRIU might do,
//! in any order: many images open at once, images never read, requests and descriptors held back.
//! Every wait has a deadline.

pub mod capture;
pub mod pages;
pub mod serve;
pub mod wire;

pub use capture::{CaptureClient, ImageWriter};
pub use pages::Pages;
pub use serve::{ImageReader, ServeClient};
