//! What a model gets of what commands write: clipped, with the rest in files, and progress meanwhile. It
//! starts no command.

pub(super) mod clip;
pub(super) mod overflow;
pub(super) mod progress;
pub(super) mod result;
