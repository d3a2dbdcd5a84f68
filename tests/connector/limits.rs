//! Memory and time.

use std::time::{Duration, Instant};

use kennel::connector::{Call, CallLimits};
use kennel::{
    broker::Manifest,
    report::{Class, Failure, Limit},
};
use serde_json::json;

use crate::support::{NOTHING, connector, manifest, module, of, runtime};

/// Asks for pages until there are no more, then says how many it has.
const GROWS: &str = "
    (loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
    (if (i32.gt_u (memory.size) (i32.const 64)) (then unreachable))
    (call $exit (i32.const 0))";

fn limits(memory_bytes: Option<u64>, wall_time: Option<Duration>) -> CallLimits {
    CallLimits { memory_bytes, wall_time }
}

#[tokio::test]
async fn memory_ends_at_its_limit_and_a_program_may_live_with_that() {
    let call = Call::new("op").limits(limits(Some(4 << 20), None));
    connector(&module("", "", GROWS)).invoke(call).await.unwrap();
}

#[tokio::test]
async fn a_program_that_fails_for_lack_of_memory_has_exceeded_its_limit() {
    let needs =
        module("", "", "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable))");
    let connector = connector(&needs);
    connector.invoke(Call::new("op")).await.unwrap();
    let error = connector.invoke(Call::new("op").limits(limits(Some(1 << 20), None))).await.unwrap_err();
    let (class, message) = of(&error);
    assert_eq!(
        (class, &*message),
        (Class::ResourceLimitExceeded, "the program needs more memory than 1048576 bytes")
    );
    let details = serde_json::to_value(Failure::from(&error).details).unwrap();
    assert_eq!(details, json!({"limit": "memory", "configured": "1048576 bytes"}));
    // One that needs more from the start.
    let error = connector.invoke(Call::new("op").limits(limits(Some(1), None))).await.unwrap_err();
    assert_eq!(of(&error).0, Class::ResourceLimitExceeded);
    connector.invoke(Call::new("op")).await.unwrap();
}

#[tokio::test]
async fn a_loop_ends_with_the_wall_time_and_others_run_meanwhile() {
    let connector = connector(&module("", "", "(loop $for_ever (br $for_ever))"));
    let call = Call::new("op").limits(limits(None, Some(Duration::from_millis(300))));
    let start = Instant::now();
    let mut ticks = 0;
    let others = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            ticks += 1;
        }
    };
    let ended = tokio::select! {
        ended = connector.invoke(call) => ended,
        () = others => unreachable!("an endless loop"),
    };
    let error = ended.unwrap_err();
    let details = serde_json::to_value(Failure::from(&error).details).unwrap();
    assert_eq!(details, json!({"limit": "wall_time", "configured": "300ms"}));
    assert_eq!(error.failure().class, Class::ResourceLimitExceeded);
    assert!(start.elapsed() < Duration::from_secs(10) && ticks > 2, "{ticks}");
}

#[tokio::test]
async fn a_program_that_sleeps_ends_with_the_wall_time() {
    let import = r#"(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))"#;
    // A subscription to the monotonic clock, in a thousand seconds.
    let start =
        "(i32.store (i32.const 2064) (i32.const 1)) (i64.store (i32.const 2072) (i64.const 1000000000000))
        (drop (call $poll (i32.const 2048) (i32.const 4096) (i32.const 1) (i32.const 8)))";
    let connector = connector(&module(import, "", start));
    let call = Call::new("op").limits(limits(None, Some(Duration::from_millis(100))));
    assert_eq!(of(&connector.invoke(call).await.unwrap_err()).0, Class::ResourceLimitExceeded);
}

#[tokio::test]
async fn the_manifest_sets_limits_and_the_call_overrides_them() {
    let text = format!("{NOTHING}.limits]\nmemory_bytes = 1\nwall_seconds = 1")
        .replace("[capabilities]", "[capabilities");
    let connector = runtime().compile(&Manifest::from_toml(&text).unwrap(), &module("", "", "")).unwrap();
    assert_eq!(of(&connector.invoke(Call::new("op")).await.unwrap_err()).0, Class::ResourceLimitExceeded);
    connector.invoke(Call::new("op").limits(limits(Some(1 << 20), None))).await.unwrap();
    assert_eq!(manifest(&text).name(), Some("test"));
    assert_eq!(Limit::WallTime, Limit::WallTime);
}

#[tokio::test]
async fn tables_do_not_grow_without_end() {
    let imports = "(table $t 1 funcref)";
    let start = "(loop $more (br_if $more (i32.ne (table.grow $t (ref.null func) (i32.const 10000)) (i32.const -1)))) unreachable";
    let (class, message) =
        of(&connector(&module(imports, "", start)).invoke(Call::new("op")).await.unwrap_err());
    assert_eq!(class, Class::ResourceLimitExceeded, "{message}");
}
