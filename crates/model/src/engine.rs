//! An explicit-state model checker.
//!
//! It explores breadth first, so that the trace to a violation is a shortest one. Safety: no
//! reachable state is a [violation](Model::violation). Liveness: from every reachable state a
//! [good](Model::good) one can be reached by steps that are not faults (in the words of temporal
//! logic, *AG EF good* over fault-free steps). This finds dead ends, in which a protocol is stuck
//! for ever; it does not find livelocks, in which it could get out but never does.

use std::fmt;
use std::hash::Hash;

use crate::interner::Interner;

/// Explores `model` until a violation is found, nothing is left, or a limit is met.
pub fn check<M: Model>(model: &M, limits: Limits) -> Report<M::Violation> {
    let mut search = Search::new(model);
    let verdict = search.run(limits);
    Report { states: search.met.states().len(), verdict }
}

/// What can be checked: where it starts, which steps are possible, what must and must not be.
pub trait Model {
    /// Everything that the next steps depend on. There are millions of them: keep it small.
    type State: Clone + Eq + Hash;
    /// The ways in which a state can be wrong.
    type Violation;

    /// The states to start from.
    fn initial(&self) -> Vec<Self::State>;
    /// Hands every step that is possible in `state` to `steps`, the same ones each time. A step
    /// that changes nothing is ignored, so that models need not look for it.
    fn steps(&self, state: &Self::State, steps: &mut Steps<'_, Self::State>);
    /// What is wrong with `state`, if anything.
    fn violation(&self, state: &Self::State) -> Option<Self::Violation>;
    /// Whether `state` is one that the protocol should always be able to come back to. States at
    /// one of the model's own bounds must count as good: what lies behind them is not explored.
    fn good(&self, state: &Self::State) -> bool;
    /// `state` in words, for the end of a trace.
    fn describe(&self, state: &Self::State) -> String;
}

/// Takes the steps that are possible in one state.
///
/// Labels come as [`format_args!`]: they are written out only for the few steps of a trace.
pub struct Steps<'a, S> {
    visit: &'a mut dyn FnMut(S, Kind, fmt::Arguments<'_>),
}

impl<S> fmt::Debug for Steps<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl<S> Steps<'_, S> {
    /// A step that the protocol, or the passing of time, takes by itself.
    pub fn step(&mut self, next: S, label: fmt::Arguments<'_>) {
        (self.visit)(next, Kind::Ordinary, label);
    }

    /// A step that only a fault takes. The way back to a good state may not need it.
    pub fn fault(&mut self, next: S, label: fmt::Arguments<'_>) {
        (self.visit)(next, Kind::Fault, label);
    }
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Stop once so many states have been met. The report then says [`Verdict::Bounded`].
    pub states_max: usize,
    /// Also look for dead ends. Costs four bytes per step, and one more pass over all states.
    pub liveness: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { states_max: 30_000_000, liveness: true }
    }
}

/// What a check found, and how many states it met.
#[derive(Debug)]
pub struct Report<V> {
    /// Distinct states met, those that were not yet expanded included.
    pub states: usize,
    /// What was found.
    pub verdict: Verdict<V>,
}

/// What a check found.
#[derive(Debug)]
pub enum Verdict<V> {
    /// All reachable states were explored: none is wrong, and, if asked for, none is a dead end.
    Holds,
    /// The limit was met. No state up to there is wrong; dead ends were not looked for.
    Bounded,
    /// A wrong state can be reached.
    Unsafe {
        /// What is wrong with it.
        violation: V,
        /// A shortest way there.
        trace: Trace,
    },
    /// No state is wrong, but from some no good one can be reached without a fault.
    DeadEnds {
        /// How many there are.
        count: usize,
        /// A shortest way to the nearest of them.
        trace: Trace,
    },
}

/// The way from an initial state to the one that was found.
#[derive(Debug)]
pub struct Trace {
    /// The label of each step.
    pub steps: Vec<String>,
    /// The state at the end, in words.
    pub end: String,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "{number:>3}. {step}")?;
        }
        write!(f, "     => {}", self.end)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ordinary,
    Fault,
}

struct Search<'m, M: Model> {
    model: &'m M,
    met: Interner<M::State>,
    /// For each state the one from which it was first reached; `None` for initial ones.
    parents: Vec<Option<u32>>,
}

impl<'m, M: Model> Search<'m, M> {
    fn new(model: &'m M) -> Self {
        Self { model, met: Interner::new(), parents: Vec::new() }
    }

    fn run(&mut self, limits: Limits) -> Verdict<M::Violation> {
        for state in self.model.initial() {
            if let Some(violation) = self.enter(state, None).violation {
                return self.unsafe_at_newest(violation);
            }
        }
        let mut graph = Graph::default();
        let mut expanded = 0;
        while expanded < self.met.states().len() {
            if self.met.states().len() >= limits.states_max {
                return Verdict::Bounded;
            }
            let successors = limits.liveness.then_some(&mut graph);
            if let Some(violation) = self.expand(expanded, successors) {
                return self.unsafe_at_newest(violation);
            }
            expanded += 1;
        }
        if !limits.liveness {
            return Verdict::Holds;
        }
        let alive = graph.can_reach(self.met.states().iter().map(|s| self.model.good(s)).collect());
        match alive.iter().position(|alive| !alive) {
            None => Verdict::Holds,
            Some(nearest) => Verdict::DeadEnds {
                count: alive.iter().filter(|alive| !**alive).count(),
                trace: self.trace(nearest),
            },
        }
    }

    /// Meets the successors of state `id`, all of them or up to the first that is wrong.
    fn expand(&mut self, id: usize, mut graph: Option<&mut Graph>) -> Option<M::Violation> {
        let model = self.model;
        let state = self.met.states()[id].clone();
        let mut found = None;
        let mut visit = |next: M::State, kind, _: fmt::Arguments<'_>| {
            if found.is_some() || next == state {
                return;
            }
            let entered = self.enter(next, Some(id as u32));
            found = entered.violation;
            if let Some(graph) = graph.as_deref_mut()
                && kind == Kind::Ordinary
            {
                graph.successors.push(entered.id);
            }
        };
        model.steps(&state, &mut Steps { visit: &mut visit });
        if let Some(graph) = graph {
            graph.ends.push(graph.successors.len());
        }
        found
    }

    /// Stores `state` if it is new, and looks whether it is wrong.
    fn enter(&mut self, state: M::State, parent: Option<u32>) -> Entered<M::Violation> {
        let (id, new) = self.met.insert(state);
        if !new {
            return Entered { id, violation: None };
        }
        self.parents.push(parent);
        Entered { id, violation: self.model.violation(&self.met.states()[id as usize]) }
    }

    fn unsafe_at_newest(&self, violation: M::Violation) -> Verdict<M::Violation> {
        Verdict::Unsafe { violation, trace: self.trace(self.met.states().len() - 1) }
    }

    /// Walks back from state `id`. Labels are not stored: the steps are taken once more.
    fn trace(&self, id: usize) -> Trace {
        let states = self.met.states();
        let mut steps = Vec::new();
        let mut at = id;
        while let Some(parent) = self.parents[at] {
            let mut label = None;
            let mut visit = |next: M::State, _, text: fmt::Arguments<'_>| {
                if label.is_none() && next == states[at] {
                    label = Some(text.to_string());
                }
            };
            self.model.steps(&states[parent as usize], &mut Steps { visit: &mut visit });
            steps.push(label.expect("a model takes the same steps each time"));
            at = parent as usize;
        }
        steps.reverse();
        Trace { steps, end: self.model.describe(&states[id]) }
    }
}

struct Entered<V> {
    id: u32,
    violation: Option<V>,
}

/// The fault-free steps between states: those of state `n` end in `successors` at `ends[n]`.
#[derive(Default)]
struct Graph {
    successors: Vec<u32>,
    ends: Vec<usize>,
}

impl Graph {
    /// From which states one of the `good` ones can be reached.
    ///
    /// Most steps lead to states that were met later, so passes from the last state to the first
    /// carry the knowledge far, and few of them are needed.
    fn can_reach(&self, good: Vec<bool>) -> Vec<bool> {
        let mut alive = good;
        loop {
            let mut changed = false;
            for id in (0..alive.len()).rev() {
                if !alive[id] && self.successors(id).iter().any(|&next| alive[next as usize]) {
                    alive[id] = true;
                    changed = true;
                }
            }
            if !changed {
                return alive;
            }
        }
    }

    fn successors(&self, id: usize) -> &[u32] {
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.successors[start..self.ends[id]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that grows by one, by five, or (a fault) falls into a trap.
    struct Numbers {
        forbidden: u32,
        trap: bool,
    }

    const TRAP: u32 = 1_000;

    impl Model for Numbers {
        type State = u32;
        type Violation = &'static str;

        fn initial(&self) -> Vec<u32> {
            vec![0]
        }

        fn steps(&self, state: &u32, steps: &mut Steps<'_, u32>) {
            if *state == TRAP {
                return;
            }
            steps.step((state + 1) % 100, format_args!("{state} + 1"));
            steps.step((state + 5) % 100, format_args!("{state} + 5"));
            if self.trap && *state == 3 {
                steps.fault(TRAP, format_args!("falls"));
            }
        }

        fn violation(&self, state: &u32) -> Option<&'static str> {
            (*state == self.forbidden).then_some("forbidden number")
        }

        fn good(&self, state: &u32) -> bool {
            *state == 0
        }

        fn describe(&self, state: &u32) -> String {
            format!("at {state}")
        }
    }

    const NOWHERE: u32 = u32::MAX;

    #[test]
    fn finds_a_shortest_trace() {
        let report = check(&Numbers { forbidden: 11, trap: false }, Limits::default());
        let Verdict::Unsafe { violation, trace } = report.verdict else { panic!("{report:?}") };
        assert_eq!(violation, "forbidden number");
        assert_eq!(trace.steps, ["0 + 1", "1 + 5", "6 + 5"]);
        assert_eq!(trace.end, "at 11");
    }

    #[test]
    fn a_wrong_initial_state_has_an_empty_trace() {
        let report = check(&Numbers { forbidden: 0, trap: false }, Limits::default());
        let Verdict::Unsafe { trace, .. } = report.verdict else { panic!("{report:?}") };
        assert!(trace.steps.is_empty());
        assert_eq!(report.states, 1);
    }

    #[test]
    fn holds_when_everything_was_explored() {
        let report = check(&Numbers { forbidden: NOWHERE, trap: false }, Limits::default());
        assert!(matches!(report.verdict, Verdict::Holds), "{report:?}");
        assert_eq!(report.states, 100);
    }

    #[test]
    fn finds_a_dead_end() {
        let report = check(&Numbers { forbidden: NOWHERE, trap: true }, Limits::default());
        let Verdict::DeadEnds { count, trace } = report.verdict else { panic!("{report:?}") };
        assert_eq!(count, 1);
        assert_eq!(trace.steps, ["0 + 1", "1 + 1", "2 + 1", "falls"]);
    }

    #[test]
    fn the_way_to_a_good_state_uses_no_fault() {
        /// Only the fault leads from 1 to the good state.
        struct NeedsAFault;

        impl Model for NeedsAFault {
            type State = u32;
            type Violation = &'static str;

            fn initial(&self) -> Vec<u32> {
                vec![0]
            }
            fn steps(&self, state: &u32, steps: &mut Steps<'_, u32>) {
                match state {
                    0 => steps.step(1, format_args!("on")),
                    1 => steps.fault(2, format_args!("fault")),
                    _ => {}
                }
            }
            fn violation(&self, _: &u32) -> Option<&'static str> {
                None
            }
            fn good(&self, state: &u32) -> bool {
                *state == 2
            }
            fn describe(&self, state: &u32) -> String {
                state.to_string()
            }
        }

        let report = check(&NeedsAFault, Limits::default());
        assert!(matches!(report.verdict, Verdict::DeadEnds { count: 2, .. }), "{report:?}");
    }

    #[test]
    fn dead_ends_are_not_looked_for_unless_asked() {
        let limits = Limits { liveness: false, ..Limits::default() };
        let report = check(&Numbers { forbidden: NOWHERE, trap: true }, limits);
        assert!(matches!(report.verdict, Verdict::Holds), "{report:?}");
    }

    #[test]
    fn says_when_it_stopped_at_the_limit() {
        let limits = Limits { states_max: 10, ..Limits::default() };
        let report = check(&Numbers { forbidden: NOWHERE, trap: true }, limits);
        assert!(matches!(report.verdict, Verdict::Bounded), "{report:?}");
        assert!(report.states >= 10);
    }
}
