//! Only granted paths are visible. A read-only path cannot be written. Private directories are gone afterwards.

mod devices;
mod grants;
mod mounts;
mod nesting;
mod private;
mod profiles;
mod random;
mod visible;
mod workspace;
