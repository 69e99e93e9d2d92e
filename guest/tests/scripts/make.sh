#!/bin/sh
# make.sh DIRECTORY: what make does and says. It prints the same with GNU make on a host.

mkdir -p "$1" && cd "$1" || exit 1

# try WHAT [ARGUMENT...]: executes make with the makefile of standard input.
try() {
    echo "== $1"
    shift
    cat >Makefile
    make "$@" 2>&1
    echo "status $?"
}

# again [ARGUMENT...]: executes it with the makefile that is there.
again() {
    make "$@" 2>&1
    echo "status $?"
}

echo one >one.c
echo two >two.c
echo head >all.h

try "patterns, and what is up to date" <<'END'
OBJECTS := $(patsubst %.c,out/%.o,$(wildcard *.c))
all: out/program
out/program: $(OBJECTS) | out
	cat $^ >$@
out/%.o: %.c all.h | out
	cp $< $@
out:
	mkdir -p $@
.PHONY: all
END
again
again out/program
cat out/program
sleep 1
touch two.c
again
sleep 1
touch all.h
again -n
again -s all
rm out/one.o
again out/program
again -B out/two.o

try "variables" X=given <<'END'
A = $(B)
B := b
B += c
C ?= $(A) d
A += a
X = not this
override Y = y
define LINES
first $(1)
second $(2)
endef
$(info $(A),$(C),$(X),$(Y),$(undefined),$$)
$(info $(call LINES,1,2))
$(info $(subst a,b,banana) $(filter %.c x,a.c b.h x) $(filter-out %.c,a.c b.h) $(sort b a b))
$(info $(dir src/a.c b) $(notdir src/a.c b) $(basename src/a.c) $(suffix src/a.c) $(words a b c))
$(info $(word 2,a b) $(firstword a b) $(lastword a b) $(addprefix -I,a b) $(addsuffix .o,a b))
$(info $(foreach i,1 2 3,<$(i)>) $(if ,yes,no) $(or ,x) $(and x,) $(strip  a   b ) $(findstring b,abc))
$(info $(shell echo one; echo two) $(OBJ:.c=.o) $(X:%=<%>))
OBJ = a.c b.c
$(info $(OBJ:.c=.o) $(OBJ:%.c=out/%.o))
ifeq ($(B),b c)
$(info equal)
ifneq "$(B)" "b c"
$(info not equal)
else ifdef Y
$(info defined)
else
$(info undefined)
endif
else
$(error this is not reached)
endif
all: ; @echo $(A) '$$' $@
END

try "rules that are made by rules" <<'END'
define program
$(1): $(2)
	@echo make $$@ from \
		$$^ $(1)
endef
all: first second
$(foreach p,first second,$(eval $(call program,$(p),$(p).in one.c)))
%.in:
	@echo $@ $*
.PHONY: all first second
END

try "variables of targets" <<'END'
FLAGS := -O
all: a.x b.x
b.x: FLAGS += -g
%.y: FLAGS += -y
a.x b.x: %.x: %.y
	@echo $@: $< $(FLAGS)
a.y b.y:
	@echo $@: $(FLAGS)
.PHONY: all a.x b.x a.y b.y
END

echo 'included += rules' >rules.mk
try "files that are included" <<'END'
-include nothing rules.mk
include rules.mk
all: ; @echo $(included)
END

try "automatic variables" <<'END'
sub/dir/all: one.c sub/two.c one.c
	@echo '$@ $< $^ $+ $(@D) $(@F) $(<D) $(^F) $?'
sub/two.c: ; @mkdir -p $(@D); cp two.c $@
END

try "a target that is missing" all <<'END'
all: one.c missing.o
	@echo not executed
END
again nothing
again -k all

try "a command that fails" <<'END'
all: first second
first:
	@echo before
	exit 3
	@echo after
second:
	@echo second
END
again -k
again -i

try "commands whose failure does not count" <<'END'
all:
	-exit 4
	@-false
	+@echo end
END
again -n

try "a program that is not there" <<'END'
all:
	no-such-program one two
END

try "a circle" <<'END'
all: a
	@echo all
a: b
	@echo a
b: c a
	@echo b
c:
END

try "a half-made file" half <<'END'
.DELETE_ON_ERROR:
half:
	echo part >$@; exit 1
END
ls half 2>/dev/null

try "no separator" <<'END'
all:
	@echo all
this is no rule
END

try "a recipe without a rule" <<'END'
	echo all
END

try "a variable that refers to itself" <<'END'
A = $(B)
B = $(A)
all: ; echo $(A)
END

try "an open conditional" <<'END'
ifdef A
all:
END

try "an open definition" <<'END'
define A
all:
END

try "an error that the makefile finds" <<'END'
$(warning look)
$(error no $(X) here)
END

try "nothing to make" <<'END'
A := 1
END

try "two recipes" <<'END'
all:
	@echo first
all:
	@echo second
END

try "nothing to do" all one.c <<'END'
all: one.c
END

echo "== other files and directories"
rm Makefile
again
again one.c
mkdir -p sub
printf 'all: ; @echo in sub $(V)\n' >sub/other.mk
again -C sub -f other.mk V=v | sed "s,'/.*/,'/,"
again -C nowhere
