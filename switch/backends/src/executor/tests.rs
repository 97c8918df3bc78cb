use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::threads::USUAL;
use super::*;

/// Longer than all that is waited for here.
const LONG: Duration = Duration::from_secs(30);

/// A task that echoes the bytes of a socket, and the other end.
fn echo(executor: &Executor) -> (Arc<Task>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    let task = executor.task(|context| {
        let stream = context.watch(ours)?;
        Ok(async move {
            loop {
                stream.clear();
                let mut byte = [0];
                match (&*stream).read(&mut byte) {
                    Ok(0) => return,
                    Ok(_) => (&*stream).write_all(&byte).unwrap(),
                    Err(_) => context.wait(None, || stream.is_ready().then_some(())).await.unwrap_or_default(),
                }
            }
        })
    });
    (task.unwrap(), theirs)
}

fn answers(mut stream: &UnixStream) -> bool {
    let mut byte = [0];
    stream.write_all(&[7]).unwrap();
    stream.read_exact(&mut byte).is_ok() && byte == [7]
}

/// A task that blocks its thread until the sender of `held` is dropped.
fn stuck(executor: &Executor, held: Receiver<()>) -> Arc<Task> {
    let task = executor.task(|_| Ok(async move { held.recv().unwrap_or_default() })).unwrap();
    task.notify();
    task
}

#[test]
fn hundreds_of_tasks_take_a_few_threads() {
    let executor = Executor::new().unwrap();
    let echoes: Vec<_> = (0..300).map(|_| echo(&executor)).collect();
    for _ in 0..3 {
        assert!(echoes.iter().all(|(_, stream)| answers(stream)));
    }
    assert!(executor.queue.threads() <= USUAL, "{}", executor.queue.threads());
    for (task, stream) in echoes {
        drop(stream);
        task.await_end(Instant::now() + LONG);
        assert!(task.has_ended());
    }
}

#[test]
fn a_thread_that_is_stuck_is_replaced_and_its_task_ends_later() {
    let executor = Executor::new().unwrap();
    let (task, stream) = echo(&executor);
    assert!(answers(&stream));
    let (releases, tasks): (Vec<_>, Vec<_>) = (0..3 * USUAL)
        .map(|_| {
            let (release, held) = channel();
            (release, stuck(&executor, held))
        })
        .unzip();
    assert!(answers(&stream));
    let begun = Instant::now();
    // The answer may come before the last task is stuck.
    while executor.queue.threads() <= USUAL {
        assert!(begun.elapsed() < LONG, "no thread more");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(tasks.iter().all(|task| !task.has_ended()));
    drop(releases);
    tasks.iter().for_each(|task| task.await_end(Instant::now() + LONG));
    assert!(tasks.iter().all(|task| task.has_ended()) && answers(&stream) && !task.has_ended());
    let begun = Instant::now();
    while executor.queue.threads() > USUAL {
        assert!(begun.elapsed() < LONG, "threads that are idle end: {}", executor.queue.threads());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(answers(&stream));
}

#[test]
fn a_task_that_never_waits_leaves_others_their_turn() {
    let executor = Executor::new().unwrap();
    let (quit, quits) = (Arc::new(std::sync::atomic::AtomicBool::new(false)), std::sync::atomic::Ordering::Relaxed);
    let busy: Vec<_> = (0..2 * USUAL)
        .map(|_| {
            let quit = Arc::clone(&quit);
            let busy = |context: Context| async move {
                while !quit.load(quits) {
                    context.yield_now().await;
                }
            };
            let task = executor.task(|context| Ok(busy(context))).unwrap();
            task.notify();
            task
        })
        .collect();
    let (_task, stream) = echo(&executor);
    assert!((0..100).all(|_| answers(&stream)));
    quit.store(true, quits);
    busy.iter().for_each(|task| task.await_end(Instant::now() + LONG));
    assert!(busy.iter().all(|task| task.has_ended()));
}

#[test]
fn a_wait_ends_in_time() {
    let executor = Executor::new().unwrap();
    let (tell, told) = channel();
    for milliseconds in [30, 10, 20] {
        let tell = tell.clone();
        let sleeper = |context: Context| async move {
            let begun = Instant::now();
            context.sleep(Duration::from_millis(milliseconds)).await;
            tell.send((milliseconds, begun.elapsed())).unwrap();
        };
        executor.task(|context| Ok(sleeper(context))).unwrap().notify();
    }
    for _ in 0..3 {
        let (milliseconds, took) = told.recv_timeout(LONG).unwrap();
        assert!(took >= Duration::from_millis(milliseconds), "{milliseconds} ms: {took:?}");
    }
    let slept = executor.run_here(|context| async move {
        let begun = Instant::now();
        assert_eq!(context.wait(Some(begun + Duration::from_millis(5)), || None::<()>).await, None);
        begun.elapsed()
    });
    assert!(slept >= Duration::from_millis(5));
}

#[test]
fn a_task_that_panics_ends_and_the_others_go_on() {
    let executor = Executor::new().unwrap();
    let task = executor.task(|_| Ok(async { panic!("as tested") })).unwrap();
    task.notify();
    task.await_end(Instant::now() + LONG);
    assert!(task.has_ended());
    let (_task, stream) = echo(&executor);
    assert!(answers(&stream));
}

#[test]
fn a_file_is_watched_no_more_once_its_watch_is_dropped_though_it_is_open_elsewhere() {
    let executor = Executor::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let copy = ours.try_clone().unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let task = executor
        .task(|context| {
            let (stream, count) = (context.watch(ours)?, Arc::clone(&count));
            Ok(async move {
                context.wait(None, || stream.is_ready().then_some(())).await;
                drop(stream);
                context
                    .wait(None, || {
                        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        None::<()>
                    })
                    .await;
            })
        })
        .unwrap();
    (&theirs).write_all(&[1]).unwrap();
    let runs = || count.load(std::sync::atomic::Ordering::Relaxed);
    let begun = Instant::now();
    while runs() == 0 {
        assert!(begun.elapsed() < LONG);
        std::thread::yield_now();
    }
    let before = runs();
    (&theirs).write_all(&[1]).unwrap();
    // An event that came would wake the task before this one is answered.
    let (_echo, stream) = echo(&executor);
    assert!(answers(&stream));
    assert_eq!(runs(), before);
    assert!(!task.has_ended());
    drop(copy);
}
