//! scratch
use std::time::Instant;
use tenure_model::engine::{Limits, Verdict, check};
use tenure_model::verdict::*;

const CALM2: Network = Network::Splits { count: 2, calm: true };
const CALM3: Network = Network::Splits { count: 3, calm: true };
const SHIFT2: Network = Network::Splits { count: 2, calm: false };
const SHIFT3: Network = Network::Splits { count: 3, calm: false };
const TIES: Scenario = Scenario::TIES;
const ALWAYS: Scenario = Scenario::ALWAYS;
const ALL: Rules = Rules::ALL;
const AW: Rules = Rules { side_has_seen_view: false, verdict_counts_as_convergence: false, ..ALL };

fn run(name: &str, rules: Rules, scenario: Scenario) {
    let t = Instant::now();
    let r = check(&LeaseMajority { rules, scenario }, Limits { states_max: 1_500_000, liveness: true });
    let v = match &r.verdict {
        Verdict::Holds => "holds".to_string(),
        Verdict::Bounded => "bounded".to_string(),
        Verdict::Unsafe { trace, .. } => format!("unsafe {} steps", trace.steps.len()),
        Verdict::DeadEnds { count, trace } => format!("dead ends {count}, {} steps", trace.steps.len()),
    };
    println!("{name}: {v} {} states {:.1}s", r.states, t.elapsed().as_secs_f32());
    if std::env::var("TRACE").is_ok() {
        match &r.verdict { Verdict::Unsafe { trace, .. } | Verdict::DeadEnds { trace, .. } => println!("{trace}"), _ => {} }
    }
}

#[test]
fn base() {
    run("always bare", Rules::BARE, ALWAYS);
    run("always checked", Rules { acquisition: Acquisition::CheckedAfterwards, ..Rules::BARE }, ALWAYS);
    run("always gen3 10280", AW, Scenario { generation_max: 3, ..ALWAYS });
    run("always gen3 crash 19136", AW, Scenario { generation_max: 3, crashes: 1, ..ALWAYS });
    run("always leaver 92706", AW, Scenario { leavers: 1, ..ALWAYS });
    run("always 4n 1230680", AW, Scenario { nodes: 4, ..ALWAYS });
    run("always crash all-dead 208", AW, Scenario { crashes: 1, all_may_die: false, ..ALWAYS });
    run("always no conv_lead", Rules { leader_waits_for_convergence: false, ..AW }, Scenario { joiners: 1, ..ALWAYS });
    run("always note", Rules { note_is_kept: false, ..AW }, ALWAYS);
    run("always unknown", Rules { unknown_means_wait: false, ..AW }, ALWAYS);
    run("always lost 376", Rules { lost_means_wait: false, ..AW }, Scenario { crashes: 1, all_may_die: false, ..ALWAYS });
    run("always read first 6140", Rules { record_is_read_first: false, ..AW }, ALWAYS);
    run("ties bare", Rules::BARE, TIES);
    let c = Rules { acquisition: Acquisition::IfUnchanged, ..Rules::BARE };
    run("ties cond 3787", c, TIES);
    run("ties cond 2 splits", c, Scenario { network: SHIFT2, ..TIES });
    run("ties cond leaver", c, Scenario { leavers: 1, ..TIES });
    run("ties cond joiner", c, Scenario { joiners: 1, ..TIES });
    run("ties no pledge calm 2", Rules { asks_are_announced: false, ..ALL }, Scenario { network: CALM2, ..TIES });
    run("ties 1 split 1791", ALL, TIES);
    run("ties 3 calm 294043", ALL, Scenario { network: CALM3, ..TIES });
    run("ties 2 shift 117966", ALL, Scenario { network: SHIFT2, ..TIES });
    run("ties crash 15967", ALL, Scenario { crashes: 1, ..TIES });
    run("ties 2 shift crash 463319 803", ALL, Scenario { network: SHIFT2, crashes: 1, ..TIES });
    run("ties leaver 67017", ALL, Scenario { leavers: 1, ..TIES });
    run("ties joiner 237925", ALL, Scenario { joiners: 1, ..TIES });
    run("ties 3 shift", ALL, Scenario { network: SHIFT3, ..TIES });
    run("ties no seen", Rules { side_has_seen_view: false, ..ALL }, Scenario { network: SHIFT2, ..TIES });
    run("ties present only", Rules { counts: Counts::PresentOnly, asks_are_announced: false, side_has_seen_view: false, ..ALL }, Scenario { network: SHIFT2, ..TIES });
    let nl = Rules { leader_waits_while_unreachable: false, leader_waits_for_convergence: false, ..ALL };
    run("ties no leader 462471", nl, Scenario { joiners: 1, ..TIES });
    run("ties no leader, present", Rules { counts: Counts::PresentOnly, ..nl }, Scenario { joiners: 1, ..TIES });
    run("ties doubt minority 294381 158", Rules { counts: Counts::DoubtIsMinority, ..ALL }, Scenario { network: CALM3, ..TIES });
    let cr = Scenario { crashes: 1, all_may_die: false, ..TIES };
    run("ties minority blind 15975 224", Rules { minority_waits_for_record: false, ..ALL }, cr);
    run("ties lost 16223 300", Rules { lost_means_wait: false, ..ALL }, cr);
    run("ties crash all-dead 216", ALL, cr);
}

#[test]
fn redundant() {
    let wo: [(&str, Rules); 5] = [
        ("verdict_conv", Rules { verdict_counts_as_convergence: false, ..ALL }),
        ("whole", Rules { verdict_travels_whole: false, ..ALL }),
        ("own ask", Rules { minority_waits_for_its_ask: false, ..ALL }),
        ("lost joiners", Rules { lost_joiners_are_downed: false, ..ALL }),
        ("leader alone", Rules { leader_waits_while_unreachable: false, ..ALL }),
    ];
    for (n, r) in wo {
        run(&format!("{n} ties 1"), r, TIES);
        run(&format!("{n} ties calm 3"), r, Scenario { network: CALM3, ..TIES });
        run(&format!("{n} ties shift 2"), r, Scenario { network: SHIFT2, ..TIES });
        run(&format!("{n} ties crash"), r, Scenario { crashes: 1, ..TIES });
        run(&format!("{n} ties crash alldead"), r, Scenario { crashes: 1, all_may_die: false, ..TIES });
        run(&format!("{n} ties leaver"), r, Scenario { leavers: 1, ..TIES });
        run(&format!("{n} ties joiner"), r, Scenario { joiners: 1, ..TIES });
        let r = Rules { side_has_seen_view: false, ..r };
        run(&format!("{n} always crash"), r, Scenario { crashes: 1, all_may_die: false, ..ALWAYS });
        run(&format!("{n} always leaver"), r, Scenario { leavers: 1, ..ALWAYS });
    }
}
