//! What a policy asks for becomes what the kernel enforces: ids, capabilities and namespaces, and limits.

mod identity;
pub mod limits;
