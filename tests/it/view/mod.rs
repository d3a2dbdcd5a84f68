//! Only what is granted is visible. What is read-only cannot be written. What is private is gone afterwards.

mod devices;
mod grants;
mod mounts;
mod nesting;
mod private;
mod profiles;
mod random;
mod visible;
mod workspace;
