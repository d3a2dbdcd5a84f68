//! Settings of a whole machine, which only a virtual one is asked to change.
