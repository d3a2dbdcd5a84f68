//! What lies below a directory that is held. Others may exchange any part of the way to it meanwhile, so everything is
//! done by descriptors, and no path of the host is looked up twice. What is to be opened, changed or removed, and how far
//! a way may lead, is for the rooms that use this: `files`, `overlay`, `watch` and others.

mod kind;
pub(crate) mod names;
pub(crate) mod rights;
mod temporary;

pub use self::kind::FileKind;
pub(crate) use self::{
    kind::{is_regular, kind, regular, stores},
    names::names,
    temporary::temporary_name,
};
