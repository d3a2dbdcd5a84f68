//! The DNS server that is inside: for a name that may be reached it has an address of the proxy's, for any other there
//! is no such name. Pure: bytes in, bytes out; asks nobody but who is given, and so says nothing to the world outside.

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use crate::policy::destination::Name;

/// Seconds. Addresses stay as they are, but a name may be allowed in the next session and not in this.
const TTL: u32 = 60;

/// What there is for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Address(Ipv4Addr),
    NoSuchName,
    /// There is no address left to give.
    Busy,
}

/// The answer to a query, never longer than what every resolver takes (512 bytes). `lookup` is asked for any type of
/// record, so that a name that is not there is not there for all of them.
///
/// `None`: it is no query, and gets no answer.
pub(crate) fn answer(query: &[u8], lookup: impl FnOnce(&Name) -> Answer) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    // An answer to an answer could go on for ever.
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata = Metadata::response_from_request(&query.metadata);
    reply.metadata.recursion_available = true;
    reply.edns = query.edns.as_ref().map(|_| Edns::new());
    // Several are not repeated: nobody needs them, and their names could be longer than the answer may be.
    if let [question] = &*query.queries {
        reply.queries.push(question.clone());
    }
    reply.metadata.response_code = match question(&query) {
        Ok(question) => fill(&mut reply, question, lookup),
        Err(refusal) => refusal,
    };
    reply.to_vec().ok()
}

/// The one question, if it is one that is for us.
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
    // For other types: the name is there, and has no such record.
    ResponseCode::NoError
}

/// RFC 6761, 6.3: these names are loopback, and not a matter of the network.
fn resolve(name: &Name, lookup: impl FnOnce(&Name) -> Answer) -> Answer {
    if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
        return Answer::Address(Ipv4Addr::LOCALHOST);
    }
    lookup(name)
}

/// The name asked for. Labels are any bytes in DNS: one with a dot in it, or with what IDNA makes a dot of, would be
/// two labels as text, and so another name.
fn name_of(question: &Query) -> Option<Name> {
    let labels: Vec<&str> =
        question.name().iter().map(|label| str::from_utf8(label).ok()).collect::<Option<_>>()?;
    let plain = labels.iter().all(|label| label.is_ascii() && !label.contains('.'));
    if plain { Name::parse(&labels.join(".")).ok() } else { None }
}
