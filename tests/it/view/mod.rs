//! Only granted paths are visible. A read-only path cannot be written. Private directories are gone
//! afterwards.

mod caches;
mod desktop;
mod devices;
pub mod etc;
mod grants;
mod kept_caches;
mod layouts;
mod masks;
mod mounts;
mod nesting;
mod private;
mod procfs;
mod profiles;
mod random;
mod root;
mod search_path;
mod visible;
mod workspace;
