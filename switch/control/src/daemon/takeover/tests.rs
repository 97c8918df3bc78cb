use std::os::unix::fs::MetadataExt;

use memlane_backends::stream::{Rest, SavedStream};
use memlane_backends::takeover::{SavedConnection, SavedMessage};
use memlane_observe::events::Record;
use serde_json::Map;

use super::give::{KEY_BYTES, KEY_NAME, Key};
use super::*;
use crate::config::{Attacher, PortOrigin, SegmentEntry, UplinkConfig};
use crate::description::{PortRecord, SavedAddress, SavedEvent, SavedListener, SavedPort, SavedStreamPort, SavedUplink};
use crate::folder;
use crate::journal::NetworkEvent;

fn description() -> Message {
    let owner = SavedMessage { request: 3, ..SavedMessage::default() };
    let features = SavedMessage { request: 2, payload: vec![u64::MAX], file: None };
    let region = SavedMessage { request: 37, payload: vec![0, 0, 1 << 30, u64::MAX >> 1, 4096], file: Some(3) };
    let connection = SavedConnection {
        mtu: Some(1400),
        messages: vec![owner, features, region],
        part: vec![1, 2, 255],
        ..SavedConnection::default()
    };
    let entry = Map::from_iter([("name".to_owned(), "web".into())]);
    let listener = Some(SavedListener { socket: 4, file: Some((7, 9)) });
    let origin = PortOrigin::labelled(Attacher::Libvirt, "web");
    let port = SavedPort { entry, origin, files: 5, listener, connection: Some(connection), tap: None, has_left: false };
    let addresses = vec![SavedAddress { port: 0, address: [2, 0, 0, 0, 0, 1], vlan: 7 }];
    let segment = SegmentEntry {
        name: Some("lan".into()),
        uplink: true,
        vni: Some(100),
        local: Some([10, 0, 0, 1].into()),
        mtu: Some(1400),
        ..SegmentEntry::default()
    };
    let config = UplinkConfig::of(&segment).unwrap();
    let uplinks = vec![SavedUplink { config: config.clone(), mtu: 1400, made: vec![("t".into(), 7)], may_tell: true }];
    let ports = vec![port];
    Message::Description(Box::new(Description {
        file_uplinks: vec![config],
        uplinks,
        ports,
        addresses,
        events: vec![SavedEvent { sequence: 7, time: 1 << 60, event: NetworkEvent::PortDetached { port: "a".into(), by: None } }],
        ..Description::default()
    }))
}

#[test]
fn messages_are_read_as_they_were_written() {
    let record = PortRecord { quarantines: 3, quarantined: Some("a fault".into()), ..PortRecord::default() };
    let event = SavedEvent { sequence: 7, time: 1 << 60, event: NetworkEvent::PortDetached { port: "a".into(), by: None } };
    assert_eq!(SavedEvent::from(&Record::from(event.clone())), event);
    let rest = Rest { read: vec![0, 0, 0, 60, 2], unwritten: Vec::new() };
    let streams = vec![SavedStreamPort { port: "db".into(), stream: SavedStream { socket: 0, rest, log: Some(1), flows: vec![] } }];
    let standing = Standing { by: None, records: vec![record], departed: Vec::new(), events: vec![event], next_event: 8, streams };
    let hello = Message::Hello(Hello { state: Some("/var/lib/a.state".into()) });
    let failed = Message::Failed("no".into());
    for message in [hello, description(), Message::Prepared {}, Message::Go(Box::new(standing)), Message::Running {}, failed] {
        assert_eq!(Message::decode(&message.encode(9).unwrap()), Ok((message, 9)));
    }
}

#[test]
fn a_message_that_was_changed_or_cut_off_is_refused() {
    let bytes = description().encode(5).unwrap();
    for index in 0..bytes.len() {
        for change in [1, 0x20, 0x80] {
            let mut changed = bytes.clone();
            changed[index] ^= change;
            assert!(Message::decode(&changed).is_err(), "byte {index} ^ {change}");
        }
        assert!(Message::decode(&bytes[..index]).is_err(), "{index} bytes");
    }
    assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
}

/// A network of the version before keeps serving, and so does this one where that version asks for it.
#[test]
fn a_description_of_the_version_before_is_refused() {
    let body = include_str!("format-5.json").trim_end();
    assert_eq!(Message::decode(&framed(5, body.as_bytes(), 5)), Err(FormatError::Version(5)));
    // Nor is it read as one of this format.
    let told = Message::decode(&framed(FORMAT, body.as_bytes(), 5)).unwrap_err();
    assert!(matches!(&told, FormatError::Body(told) if told.contains("unknown field `owned`")), "{told}");
}

/// Types that change without another [`FORMAT`] would let two versions misunderstand each other.
#[test]
fn a_description_of_this_format_stays_the_same() {
    assert_eq!(FORMAT, 6, "keep a description of the new format beside that of the one before");
    let text = serde_json::to_string_pretty(&description()).unwrap();
    let kept = include_str!("format-6.json").trim_end();
    assert!(text == kept, "raise FORMAT, and keep this description of the new format:\n{text}");
}

#[test]
fn another_format_and_unknown_keys_are_refused() {
    let mut bytes = Message::Prepared {}.encode(0).unwrap();
    bytes[8] = 2;
    let told = Message::decode(&bytes).unwrap_err();
    assert!(told == FormatError::Version(2) && told.to_string().contains("restart the network instead"), "{told}");
    let wrong = [
        r#"{"prepared":{"more":1}}"#,
        r#"{"hello":{"state":null,"more":1}}"#,
        r#"{"later":{}}"#,
        r#"{"go":{"records":[{"totals":{}}],"events":[],"next-event":0}}"#,
    ];
    for text in wrong {
        assert!(serde_json::from_str::<Message>(text).is_err(), "{text}");
    }
}

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn messages_arrive_with_all_their_descriptors_in_order() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |n: usize| File::create(folder.path().join(n.to_string())).unwrap();
    let files: Vec<File> = (0..300).map(file).collect();
    let inodes = |files: &[File]| files.iter().map(|file| file.metadata().unwrap().ino()).collect::<Vec<_>>();
    let expected = inodes(&files);
    let state = Some("x".repeat(3 << 20).into());
    let message = Message::Hello(Hello { state });
    let sent = message.clone();
    let sender = std::thread::spawn(move || {
        let files: Vec<OwnedFd> = files.into_iter().map(OwnedFd::from).collect();
        let mut channel = Channel::new(ours);
        channel.send(&sent, &files, TIMEOUT).unwrap();
        channel.send(&Message::Failed("no room".into()), &[], TIMEOUT).unwrap();
    });
    let mut channel = Channel::new(theirs);
    let (received, files) = channel.receive(TIMEOUT).unwrap();
    assert_eq!((received, inodes(&files)), (message, expected));
    assert!(matches!(channel.receive(TIMEOUT), Err(ChannelError::Failed(cause)) if cause == "no room"));
    sender.join().unwrap();
    assert!(matches!(channel.receive(TIMEOUT), Err(ChannelError::Ended)) && channel.await_end(TIMEOUT));
}

#[test]
fn garbage_silence_and_descriptors_that_never_come_are_errors() {
    let short = Duration::from_millis(30);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut channel = Channel::new(theirs);
    assert!(matches!(channel.receive(short), Err(ChannelError::Late(_))));
    (&ours).write_all(&Message::Prepared {}.encode(2).unwrap()).unwrap();
    assert!(matches!(channel.receive(short), Err(ChannelError::Late(_))));
    (&ours).write_all(&[b'x'; 100]).unwrap();
    assert!(matches!(channel.receive(short), Err(ChannelError::Format(FormatError::Foreign))));
    // Other bytes where descriptors should be.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let bytes = [Message::Prepared {}.encode(2).unwrap(), vec![0; 8]].concat();
    (&ours).write_all(&bytes).unwrap();
    assert!(matches!(Channel::new(theirs).receive(short), Err(ChannelError::Format(FormatError::Foreign))));
}

#[test]
fn a_key_is_for_its_owner_and_no_other_text_passes_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("net.d");
    let first = Key::of(&own).unwrap();
    assert_eq!(std::fs::metadata(own.join(KEY_NAME)).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 1);
    assert!(Key::of(&own).unwrap() == first && first.is(first.text().as_bytes()));
    folder::remove_of_network(&own);
    assert!(!own.exists());
    let next = Key::of(&own).unwrap();
    assert!(next != first && !next.is(first.text().as_bytes()));
    assert!(!next.is(b"") && !next.is(&next.text().as_bytes()[1..]) && !next.is(format!("{}0", next.text()).as_bytes()));
    // Half a key is replaced; a link is not followed.
    std::fs::write(own.join(KEY_NAME), "abc").unwrap();
    assert!(Key::of(&own).unwrap().text().len() == 2 * KEY_BYTES);
    std::fs::rename(own.join(KEY_NAME), own.join("other")).unwrap();
    std::os::unix::fs::symlink("other", own.join(KEY_NAME)).unwrap();
    assert!(Key::of(&own).is_err());
}

#[test]
fn processes_that_start_at_once_have_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("net.d");
    let keys: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Key::of(&own))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
    });
    assert!(!keys.is_empty() && keys.iter().all(|key| *key == Key::of(&own).unwrap()));
}
