//! Only what is granted is visible; what is read-only cannot be written; what is private is gone afterwards.

mod devices;
mod grants;
mod mounts;
mod nesting;
mod private;
mod profiles;
mod protected;
mod random;
mod view;
mod workspace;
