//! The messages of a vhost-user front end, from the table by which they are decoded.

use memlane_backends::vhost_user::messages::{Answer, MESSAGES, Payload, Row};

use super::table;

/// The chapter.
pub(super) fn chapter() -> String {
    let rows: Vec<_> = MESSAGES.iter().map(cells).collect();
    let intro = "Each message with its payload, its descriptors, the protocol feature that it needs, and its answer.\n\
                 All others are refused, and end the connection.";
    format!("## Messages\n\n{intro}\n\n{}", table(&["message", "payload", "descriptors", "needs", "answer"], &rows))
}

fn cells(row: &Row) -> Vec<String> {
    let (fewest, most) = row.files;
    let files = if fewest == most { most.to_string() } else { format!("{fewest} to {most}") };
    let feature = row.feature.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
    let answer = match row.answer {
        Answer::Reply => "reply",
        Answer::Acknowledgement => "acknowledgement",
        Answer::Verdict => "acknowledgement; a failure ends no connection",
        Answer::Refusal => "always refused",
    };
    vec![format!("{:?}", row.request), payload(row.payload), files, feature, answer.to_owned()]
}

fn payload(Payload { head, item, most }: Payload) -> String {
    match (item, most) {
        (_, 0) => format!("{head} bytes"),
        (1, _) => format!("{head} bytes or more"),
        _ => format!("{head} bytes and up to {most} of {item}"),
    }
}
