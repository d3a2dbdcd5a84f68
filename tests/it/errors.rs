//! Every refusal names the thing, the cause and the remedy, and leaves nothing behind.

mod command;
mod exhaustion;
mod leftovers;
mod policy_file;
