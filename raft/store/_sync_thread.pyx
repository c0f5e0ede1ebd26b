# cython: language_level=3
"""A thread that calls fdatasync and never takes the interpreter lock.

Owns: the thread, the event descriptor that it writes to after each sync.
May not touch: Python objects outside of the methods; which files are synced, and when.
Spec: raft/store/flush_thread.py, whose plain twin is a Python thread. One sync at a time: `start`,
then `finish` when the event descriptor is readable."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from posix.unistd cimport close, fdatasync, read, write

import os

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t*)
    int SIG_SETMASK

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)
    int pthread_sigmask(int, const sigset_t*, sigset_t*)
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_cond_destroy(pthread_cond_t*)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t*, int, unsigned int)
    int sem_wait(sem_t*)
    int sem_post(sem_t*)
    int sem_destroy(sem_t*)

cdef enum:
    FILES_CAPACITY = 16
    IDLE = 0
    SYNCING = 1
    STOPPED = 2

FILES_MAX = FILES_CAPACITY

cdef struct Shared:
    pthread_t thread
    # What the thread waits for. Not the condition: a thread that is woken while the other one holds
    # the lock sleeps again at once, which was three more system calls for each sync.
    sem_t requested
    pthread_mutex_t lock  # protects what follows
    pthread_cond_t changed  # for `wait`
    int state
    int error  # errno of the last sync; 0: it succeeded
    int event
    int count
    int files[FILES_CAPACITY]


cdef void* _run(void* argument) noexcept nogil:
    cdef Shared* shared = <Shared*> argument
    cdef uint64_t one = 1
    cdef int error, at
    while True:
        while sem_wait(&shared.requested):
            pass  # EINTR
        if shared.state == STOPPED:
            return NULL
        error = 0
        for at in range(shared.count):
            while fdatasync(shared.files[at]):
                if errno != EINTR:
                    error = errno
                    break
            if error:
                break
        pthread_mutex_lock(&shared.lock)
        shared.error = error
        shared.state = IDLE
        pthread_cond_broadcast(&shared.changed)
        pthread_mutex_unlock(&shared.lock)
        write(shared.event, &one, sizeof(one))


cdef class SyncThread:
    """Runs until `stop`. All methods but `wait` belong to one thread."""

    cdef Shared _shared
    cdef bint _running

    def __cinit__(self):
        cdef sigset_t every, before
        self._shared.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._shared.state = IDLE
        sem_init(&self._shared.requested, 0, 0)
        pthread_mutex_init(&self._shared.lock, NULL)
        pthread_cond_init(&self._shared.changed, NULL)
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)  # signals are for the other threads
        failed = pthread_create(&self._shared.thread, NULL, _run, &self._shared)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        self._running = not failed
        if failed:
            close(self._shared.event)
            raise OSError(failed, os.strerror(failed))

    def __dealloc__(self):
        self._end()
        sem_destroy(&self._shared.requested)
        pthread_mutex_destroy(&self._shared.lock)
        pthread_cond_destroy(&self._shared.changed)

    @property
    def event(self):
        """Readable when a sync has ended, until `finish`."""
        return self._shared.event

    def start(self, list descriptors):
        """Sync these files, at most FILES_MAX. They stay open until `finish`."""
        cdef int at = 0
        if len(descriptors) > FILES_CAPACITY:
            raise ValueError("too many files for one sync")
        if self._shared.state != IDLE:
            raise RuntimeError("a sync is in flight, or the thread was stopped")
        for descriptor in descriptors:
            self._shared.files[at] = descriptor
            at += 1
        self._shared.count = at
        pthread_mutex_lock(&self._shared.lock)
        self._shared.state = SYNCING
        pthread_mutex_unlock(&self._shared.lock)
        sem_post(&self._shared.requested)

    def finish(self):
        """The event descriptor was readable: errno of the sync, 0 if it succeeded."""
        cdef uint64_t count
        read(self._shared.event, &count, sizeof(count))
        return self.wait()

    def wait(self):
        """Blocking, on any thread: errno of the sync in flight, or of the last one."""
        cdef int error
        with nogil:
            pthread_mutex_lock(&self._shared.lock)
            while self._shared.state == SYNCING:
                pthread_cond_wait(&self._shared.changed, &self._shared.lock)
            error = self._shared.error
            pthread_mutex_unlock(&self._shared.lock)
        return error

    def stop(self):
        """Blocking, while a sync is in flight."""
        self._end()

    cdef void _end(self):
        if not self._running:
            return
        self._running = False
        with nogil:
            pthread_mutex_lock(&self._shared.lock)
            while self._shared.state == SYNCING:
                pthread_cond_wait(&self._shared.changed, &self._shared.lock)
            self._shared.state = STOPPED
            pthread_mutex_unlock(&self._shared.lock)
            sem_post(&self._shared.requested)
            pthread_join(self._shared.thread, NULL)
            close(self._shared.event)
