//! A proxy of the tests, as a company has one: it takes CONNECT and absolute form, and leads everything to one address.
