//! The `memlane` command; see [`memlane::cli`].

fn main() -> std::process::ExitCode {
    memlane::cli::main()
}
