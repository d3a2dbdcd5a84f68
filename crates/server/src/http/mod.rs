//! What a front and a router have in common: connections of clients, which sandbox a request names, and
//! passing requests on. Knows neither hosts nor workers.

pub(crate) mod forward;
pub(crate) mod listen;
pub(crate) mod request;
