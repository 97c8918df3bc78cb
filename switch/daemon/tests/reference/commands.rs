//! The command line, as clap has it.

use clap::{Arg, Command};

use super::table;

pub fn page() -> String {
    let program = memlane::cli::command();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    let chapters: String = commands.map(chapter).collect();
    format!("# The command line\n\n{}\n\n{chapters}", after(&program).trim_end())
}

fn chapter(command: &Command) -> String {
    let mut command = command.clone().bin_name(format!("memlane {}", command.get_name()));
    let usage = command.render_usage().to_string();
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let rows: Vec<_> =
        command.get_arguments().filter(|argument| !argument.is_hide_set() && argument.get_id() != "help").map(row).collect();
    let arguments = if rows.is_empty() { String::new() } else { table(&["argument", "meaning"], &rows) };
    format!(
        "## memlane {}\n\n{about}\n\n```help\n{}\n```\n\n{arguments}{}",
        command.get_name(),
        usage.trim_start_matches("Usage: "),
        after(&command)
    )
}

fn row(argument: &Arg) -> Vec<String> {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let values: Vec<_> = argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let is_choice = argument.get_action().takes_values() && !values.is_empty();
    let values = if is_choice { format!(" One of {}.", values.join(", ")) } else { String::new() };
    vec![format!("`{argument}`"), format!("{help}{values}")]
}

/// What stands below the arguments: examples, exit codes.
fn after(command: &Command) -> String {
    command.get_after_help().map(|text| format!("```help\n{text}\n```\n\n")).unwrap_or_default()
}
