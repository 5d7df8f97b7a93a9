// A kernel as a program, for tests: it reads calls, makes them and writes back the memory that they were given.
//
// A call is a letter (of train, evaluate, sample) and its arguments. A number is eight bytes, a double or an integer. A
// pointer is its size in bytes (-1: null), the size of an element and how many pointers it begins with; then its bytes,
// and what these pointers point to. The answer is the bytes of every memory in the same order, and what was returned.
#include RESHARPEN_KERNEL

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <tuple>
#include <type_traits>

namespace {

template <class T>
T take() {
    T x;
    if (std::fread(&x, sizeof x, 1, stdin) != 1) std::exit(3);
    return x;
}

struct Memory {
    char *room, *data;
    int64_t size;
};
std::deque<Memory> memories;

// One element behind a multiple of 64, and no longer than it says: so a sanitizer sees an access too far, or too wide.
void* take_memory() {
    const auto size = take<int64_t>();
    if (size < 0) return nullptr;
    const auto element = take<int64_t>(), pointers = take<int64_t>();
    void* room = nullptr;
    if (posix_memalign(&room, 64, std::size_t(size + element))) std::exit(4);
    char* data = static_cast<char*>(room) + element;
    memories.push_back({static_cast<char*>(room), data, size});
    if (size && std::fread(data, std::size_t(size), 1, stdin) != 1) std::exit(5);
    for (int64_t i = 0; i < pointers; i++) {
        void* inside = take_memory();
        std::memcpy(data + i * sizeof inside, &inside, sizeof inside);
    }
    return data;
}

template <class T>
T argument() {
    if constexpr (std::is_pointer_v<T>)
        return static_cast<T>(take_memory());
    else if constexpr (std::is_floating_point_v<T>)
        return T(take<double>());
    else
        return T(take<int64_t>());
}

template <class R, class... A>
void call(R (*function)(A...)) {
    const std::tuple<A...> arguments{argument<A>()...};
    int64_t result = 0;
    if constexpr (std::is_void_v<R>)
        std::apply(function, arguments);
    else
        result = std::apply(function, arguments);
    for (const Memory& memory : memories) {
        std::fwrite(memory.data, std::size_t(memory.size), 1, stdout);
        std::free(memory.room);
    }
    memories.clear();
    std::fwrite(&result, sizeof result, 1, stdout);
    std::fflush(stdout);
}

}  // namespace

int main() {
    for (char letter; std::fread(&letter, 1, 1, stdin) == 1;) {
        if (letter == 't') call(train);
        if (letter == 'e') call(evaluate);
#if defined(RESHARPEN_LAYERS)  // the transformer's kernel has one more
        if (letter == 's') call(sample);
#endif
    }
}
