//! The DNS stub in the sandbox. An allowed name gets a loopback address of the proxy; any other name does not
//! exist. It parses and writes messages, and sends no query to other servers.

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use crate::policy::destination::Name;

/// Seconds. Addresses do not change, but another session may not allow the name.
const TTL: u32 = 60;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Address(Ipv4Addr),
    NoSuchName,
    /// The table of addresses is full.
    Busy,
}

/// The answer to a query, at most 512 bytes, which every resolver accepts. It calls `lookup` for every record
/// type, so that a missing name is missing for all of them.
///
/// `None` if the bytes are no query.
pub(crate) fn answer(query: &[u8], lookup: impl FnOnce(&Name) -> Answer) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    // Two servers could answer each other's answers for ever.
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata = Metadata::response_from_request(&query.metadata);
    reply.metadata.recursion_available = true;
    reply.edns = query.edns.as_ref().map(|_| Edns::new());
    // Several questions are not repeated: their names could exceed the size of the answer.
    if let [question] = &*query.queries {
        reply.queries.push(question.clone());
    }
    reply.metadata.response_code = match question(&query) {
        Ok(question) => fill(&mut reply, question, lookup),
        Err(refusal) => refusal,
    };
    reply.to_vec().ok()
}

/// The only question of a query, if the stub supports it.
fn question(query: &Message) -> Result<&Query, ResponseCode> {
    if query.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    if query.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return Err(ResponseCode::BADVERS);
    }
    match &*query.queries {
        [question] => Ok(question),
        _ => Err(ResponseCode::FormErr),
    }
}

fn fill(reply: &mut Message, question: &Query, lookup: impl FnOnce(&Name) -> Answer) -> ResponseCode {
    if !matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
        return ResponseCode::Refused;
    }
    let name = name_of(question).filter(|_| question.query_type() != RecordType::PTR);
    let address = match name.map_or(Answer::NoSuchName, |name| resolve(&name, lookup)) {
        Answer::Address(address) => address,
        Answer::NoSuchName => return ResponseCode::NXDomain,
        Answer::Busy => return ResponseCode::ServFail,
    };
    if matches!(question.query_type(), RecordType::A | RecordType::ANY) {
        reply.answers.push(Record::from_rdata(question.name().clone(), TTL, RData::A(A(address))));
    }
    // The name exists, and has no record of another type.
    ResponseCode::NoError
}

/// RFC 6761, 6.3: `localhost` names always mean loopback.
fn resolve(name: &Name, lookup: impl FnOnce(&Name) -> Answer) -> Answer {
    if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
        return Answer::Address(Ipv4Addr::LOCALHOST);
    }
    lookup(name)
}

/// The name in a question. DNS labels may contain any byte: a dot, or a character that IDNA maps to a dot,
/// would make two labels of one, and so another name.
fn name_of(question: &Query) -> Option<Name> {
    let labels: Vec<&str> =
        question.name().iter().map(|label| str::from_utf8(label).ok()).collect::<Option<_>>()?;
    let plain = labels.iter().all(|label| label.is_ascii() && !label.contains('.'));
    if plain { Name::parse(&labels.join(".")).ok() } else { None }
}
