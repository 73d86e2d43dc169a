//! An update rule of the user: a program of element-wise operations.
//!
//! A program is checked and compiled once. Each step first computes the values that depend only on
//! the learning rate and the step number. The other operations run over blocks of elements, one
//! operation after the other. So the choice of an operation costs little, and each operation is
//! vectorised ([`crate::own_rule`]).

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most operations and constants of a program.
const MOST_NODES: usize = 64;
/// The most values of a program that are the same for all elements; the learning rate and the step
/// number are two of them.
const MOST_NUMBERS: usize = 32;
/// The most slots of a program.
const MOST_SLOTS: usize = 8;
/// The most programs that a process meets, each of which stays in its memory.
const MOST_PROGRAMS: usize = 256;
/// Values with a number of their own before those of the slots: weight, gradient, learning rate, step.
const NUM_GIVEN: usize = 4;

/// A program in the form in which a worker declares it.
///
/// Values have numbers: 0 is the weight, 1 the gradient, 2 the learning rate, 3 the step number
/// (from 1). Then come the slots, and then the nodes. Each node uses values before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramSpec {
    /// Name and first value of each slot.
    pub slots: Vec<(String, f64)>,
    /// Operations and constants.
    pub nodes: Vec<NodeSpec>,
    /// The value that becomes the weight.
    pub weight: usize,
    /// The values that become the slots.
    pub new_slots: Vec<usize>,
}

/// An operation of a program, or a constant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// "constant", or the name of an operation.
    pub op: String,
    /// The values that it takes.
    #[serde(default)]
    pub args: Vec<usize>,
    /// Of a constant.
    #[serde(default)]
    pub value: f64,
}

/// Why a program cannot be used.
#[derive(Debug, Error, Clone, PartialEq)]
#[error("the update rule is no program: {0}")]
pub struct BadProgram(String);

/// The operation of a node. Comparisons give 1 or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
    Minimum,
    Maximum,
    Less,
    LessEqual,
    Equal,
    Negative,
    Sqrt,
    Abs,
    Sign,
    Exp,
    Log,
    Where,
}

impl Op {
    const ALL: [(&'static str, Op); 17] = [
        ("add", Op::Add),
        ("subtract", Op::Subtract),
        ("multiply", Op::Multiply),
        ("divide", Op::Divide),
        ("power", Op::Power),
        ("minimum", Op::Minimum),
        ("maximum", Op::Maximum),
        ("less", Op::Less),
        ("less_equal", Op::LessEqual),
        ("equal", Op::Equal),
        ("negative", Op::Negative),
        ("sqrt", Op::Sqrt),
        ("abs", Op::Abs),
        ("sign", Op::Sign),
        ("exp", Op::Exp),
        ("log", Op::Log),
        ("where", Op::Where),
    ];

    fn named(name: &str) -> Result<Op, BadProgram> {
        let found = Op::ALL.iter().find(|(known, _)| *known == name);
        found.map(|&(_, op)| op).ok_or_else(|| {
            let known: Vec<_> = Op::ALL.iter().map(|(known, _)| *known).collect();
            BadProgram(format!(
                "operation '{name}'; expected one of {}",
                known.join(", ")
            ))
        })
    }

    fn num_args(self) -> usize {
        match self {
            Op::Where => 3,
            Op::Negative | Op::Sqrt | Op::Abs | Op::Sign | Op::Exp | Op::Log => 1,
            _ => 2,
        }
    }

    /// The operation on numbers; `c` is of `Where` alone.
    fn of_numbers(self, [a, b, c]: [f64; 3]) -> f64 {
        match self {
            Op::Add => a + b,
            Op::Subtract => a - b,
            Op::Multiply => a * b,
            Op::Divide => a / b,
            Op::Power => a.powf(b),
            Op::Minimum if a.is_nan() || b.is_nan() => f64::NAN,
            Op::Maximum if a.is_nan() || b.is_nan() => f64::NAN,
            Op::Minimum => a.min(b),
            Op::Maximum => a.max(b),
            Op::Less => f64::from(u8::from(a < b)),
            Op::LessEqual => f64::from(u8::from(a <= b)),
            Op::Equal => f64::from(u8::from(a == b)),
            Op::Negative => -a,
            Op::Sqrt => a.sqrt(),
            Op::Abs => a.abs(),
            Op::Sign if a == 0.0 || a.is_nan() => a,
            Op::Sign => a.signum(),
            Op::Exp => a.exp(),
            Op::Log => a.ln(),
            Op::Where if a == 0.0 => c,
            Op::Where => b,
        }
    }
}

/// The source of an operation's argument: a register of elements, or a number for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(usize),
    Number(usize),
}

/// An operation on elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    pub(crate) args: [Operand; 3],
    pub(crate) out: usize,
}

/// A program that was checked. Registers 0, 1 and 2.. begin with weight, gradient and slots.
#[derive(Debug, PartialEq)]
pub(crate) struct Program {
    spec: ProgramSpec,
    pub(crate) slot_names: Vec<&'static str>,
    pub(crate) first_values: Vec<f32>,
    numbers: Vec<Number>,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) num_registers: usize,
    pub(crate) weight: Operand,
    pub(crate) new_slots: Vec<Operand>,
}

/// A number of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    LearningRate,
    Step,
    Constant(f64),
    Computed(Op, [usize; 3]),
}

/// Numbers of one step, as elements meet them.
pub(crate) type Numbers = [f32; MOST_NUMBERS];

impl Program {
    /// Return the program of a description; equal ones are one.
    ///
    /// # Errors
    /// [`BadProgram`] says what of it makes no sense.
    pub(crate) fn of(spec: &ProgramSpec) -> Result<&'static Program, BadProgram> {
        static KNOWN: Mutex<Vec<&'static Program>> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.iter().find(|program| program.spec == *spec) {
            return Ok(found);
        }
        if known.len() == MOST_PROGRAMS {
            return Err(BadProgram(format!(
                "a process has room for {MOST_PROGRAMS} of them"
            )));
        }
        let program: &'static Program = Box::leak(Box::new(Program::compiled(spec)?));
        known.push(program);
        Ok(program)
    }

    fn compiled(spec: &ProgramSpec) -> Result<Program, BadProgram> {
        let num_slots = spec.slots.len();
        if spec.nodes.len() > MOST_NODES || num_slots > MOST_SLOTS {
            return Err(BadProgram(format!(
                "{} operations and {num_slots} slots; expected at most {MOST_NODES} and {MOST_SLOTS}",
                spec.nodes.len()
            )));
        }
        if spec.new_slots.len() != num_slots {
            return Err(BadProgram(format!(
                "{} new values of {num_slots} slots",
                spec.new_slots.len()
            )));
        }
        if let Some((name, value)) = spec.slots.iter().find(|(_, first)| !first.is_finite()) {
            return Err(BadProgram(format!("slot '{name}' begins with {value}")));
        }
        let mut made = Compiler::new(num_slots);
        for node in &spec.nodes {
            made.add(node)?;
        }
        let weight = made.value(spec.weight)?;
        let new_slots: Result<_, _> = spec.new_slots.iter().map(|&at| made.value(at)).collect();
        Ok(Program {
            spec: spec.clone(),
            slot_names: spec
                .slots
                .iter()
                .map(|(name, _)| &*String::leak(name.clone()))
                .collect(),
            first_values: spec.slots.iter().map(|&(_, first)| first as f32).collect(),
            numbers: made.numbers,
            instructions: made.instructions,
            num_registers: made.num_registers,
            weight,
            new_slots: new_slots?,
        })
    }

    /// Compute the numbers of a step, in double precision.
    pub(crate) fn numbers(&self, learning_rate: f32, step: u64) -> Numbers {
        let mut exact = [0.0; MOST_NUMBERS];
        for (at, number) in self.numbers.iter().enumerate() {
            exact[at] = match *number {
                Number::LearningRate => f64::from(learning_rate),
                Number::Step => step as f64,
                Number::Constant(value) => value,
                Number::Computed(op, args) => op.of_numbers(args.map(|arg| exact[arg])),
            };
        }
        exact.map(|value| value as f32)
    }
}

/// Puts a program together, node by node.
struct Compiler {
    values: Vec<Operand>,
    numbers: Vec<Number>,
    instructions: Vec<Instruction>,
    num_registers: usize,
}

impl Compiler {
    fn new(num_slots: usize) -> Compiler {
        use Operand::{Number, Register};
        let mut values = vec![Register(0), Register(1), Number(0), Number(1)];
        values.extend((0..num_slots).map(|slot| Register(2 + slot)));
        debug_assert_eq!(values.len(), NUM_GIVEN + num_slots);
        Compiler {
            values,
            numbers: vec![self::Number::LearningRate, self::Number::Step],
            instructions: Vec::new(),
            num_registers: 2 + num_slots,
        }
    }

    fn value(&self, at: usize) -> Result<Operand, BadProgram> {
        let found = self.values.get(at).copied();
        found.ok_or_else(|| BadProgram(format!("value {at} is used before it is there")))
    }

    fn add(&mut self, node: &NodeSpec) -> Result<(), BadProgram> {
        if node.op == "constant" {
            let value = self.number(Number::Constant(node.value));
            self.values.push(value?);
            return Ok(());
        }
        let op = Op::named(&node.op)?;
        if node.args.len() != op.num_args() {
            return Err(BadProgram(format!(
                "'{}' takes {} values, found {}",
                node.op,
                op.num_args(),
                node.args.len()
            )));
        }
        let mut args = [self.value(node.args[0])?; 3];
        for (arg, &at) in args.iter_mut().zip(&node.args) {
            *arg = self.value(at)?;
        }
        let numbers = args.map(|arg| match arg {
            Operand::Number(at) => Some(at),
            Operand::Register(_) => None,
        });
        let value = if let [Some(a), Some(b), Some(c)] = numbers {
            self.number(Number::Computed(op, [a, b, c]))?
        } else {
            let out = self.num_registers;
            self.num_registers += 1;
            self.instructions.push(Instruction { op, args, out });
            Operand::Register(out)
        };
        self.values.push(value);
        Ok(())
    }

    fn number(&mut self, number: Number) -> Result<Operand, BadProgram> {
        if self.numbers.len() == MOST_NUMBERS {
            return Err(BadProgram(format!(
                "more than {MOST_NUMBERS} constants and numbers made of them"
            )));
        }
        self.numbers.push(number);
        Ok(Operand::Number(self.numbers.len() - 1))
    }
}
