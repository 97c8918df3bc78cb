//! Usage errors of the command line, in this program's own words: the mistake, and the correct form.

use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{either, nearest, printable, renamed};
use crate::quantity::{Quantity, Read};

/// The sentence for `error`; `None` if it is no mistake, as the text of `--help`.
pub(super) fn told(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let argument = |kind| texts(error, kind).into_iter().map(|text| option(&text)).collect::<Vec<_>>();
    let first = |kind| argument(kind).into_iter().next().unwrap_or_default();
    let value = printable(&texts(error, ContextKind::InvalidValue).join(" "));
    let invalid = first(ContextKind::InvalidArg);
    let text = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return None,
        ErrorKind::InvalidSubcommand => {
            let name = texts(error, ContextKind::InvalidSubcommand).join(" ");
            let known = <super::Arguments as clap::CommandFactory>::command();
            let near = nearest(&name, known.get_subcommands().map(clap::Command::get_name));
            format!("unknown command {}{}", printable(&name), meant(&near.map(str::to_owned).into_iter().collect::<Vec<_>>()))
        }
        ErrorKind::UnknownArgument if invalid.starts_with('-') => match invalid.strip_prefix("--").and_then(renamed) {
            Some(new) => format!("the option {invalid} was renamed to --{new}"),
            None => format!("unknown option {}{}", printable(&invalid), meant(&argument(ContextKind::SuggestedArg))),
        },
        ErrorKind::UnknownArgument => {
            format!("too many arguments: \"{}\" has no meaning here; quote text that contains spaces", printable(&invalid))
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{invalid} needs a value"),
        ErrorKind::InvalidValue => {
            let valid: Vec<String> = texts(error, ContextKind::ValidValue);
            let near = meant(&texts(error, ContextKind::SuggestedValue));
            format!("{invalid} is \"{value}\"; it must be {}{near}", either(&valid))
        }
        ErrorKind::ValueValidation => {
            let wanted = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{invalid} is \"{value}\"; it must be {wanted}")
        }
        ErrorKind::NoEquals => format!("{invalid} needs \"=\" before its value, as in {invalid}=VALUE"),
        ErrorKind::TooManyValues => format!("{invalid} takes no value"),
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => format!("{invalid} needs a value"),
        ErrorKind::ArgumentConflict => conflict(&invalid, &argument(ContextKind::PriorArg)),
        ErrorKind::MissingRequiredArgument => {
            format!("the argument {} is missing", argument(ContextKind::InvalidArg).join(" and "))
        }
        ErrorKind::MissingSubcommand => "a command is missing".into(),
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".into(),
        _ => "the arguments are invalid".into(),
    };
    let end = if text.ends_with('?') { "" } else { "." };
    Some(format!("{text}{end} See `{} --help`", command(arguments)))
}

fn conflict(invalid: &str, others: &[String]) -> String {
    match others {
        [other] if other == invalid => format!("{invalid} is given twice: remove one of the two"),
        [] => format!("{invalid} is given twice, or conflicts with another option: remove it"),
        others => format!("{invalid} conflicts with {}: remove one of them", others.join(" and ")),
    }
}

fn meant(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", either(near)) }
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// The name of an option, without its value: "--mtu <BYTES>" is --mtu; that of a positional argument, "<PORT>", is PORT.
fn option(text: &str) -> String {
    let name = text.split([' ', '=', '[', ']']).find(|part| !part.is_empty()).unwrap_or(text);
    name.trim_matches(['<', '>', '.']).into()
}

/// The words of the command line that name a command.
fn command(arguments: &[String]) -> String {
    let named = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    let known = <super::Arguments as clap::CommandFactory>::command();
    let named = named.filter(|name| known.find_subcommand(name.as_str()).is_some());
    named.map_or_else(|| "memlane".into(), |name| format!("memlane {name}"))
}

/// A time on the command line, up to an hour: "10", in seconds, or with its unit.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let read = match text.parse::<u64>() {
        Ok(seconds) => seconds.checked_mul(1000),
        Err(_) => match Quantity::Milliseconds.read(text) {
            Some(Read::Whole(milliseconds)) => Some(milliseconds),
            _ => None,
        },
    };
    let read = read.map(Duration::from_millis).filter(|time| *time <= crate::control::routes::MAX_TIMEOUT);
    read.ok_or_else(|| "a number of seconds or a time with its unit, up to an hour, as 10, 500ms or 5min".into())
}

/// A number from 1 on.
pub(super) fn number(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("a whole number from 1 to {}", u32::MAX))
}

/// An address.
pub(super) fn address(text: &str) -> Result<std::net::Ipv4Addr, String> {
    text.parse().map_err(|_| "an IPv4 address, as 10.0.0.1".into())
}
